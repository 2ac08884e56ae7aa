"""The device waits for the host."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import at, costliest_lines, iteration_s
from autotune.words import duration_words
from autotune_trials.protocol.messages import PHASES

# NVIDIA and PyTorch ("Performance Tuning Guide") advise looking into gaps once utilization is below
# 85 to 90%.
IDLE_SHARE = 0.15


class HostBound(Rule):
    name = "host-bound"
    title = "The device sits idle"
    card = (
        f"For at least {IDLE_SHARE:.0%} of an iteration no kernel and no copy runs on the device."
        " The cost is that time, less what more specific findings explain. The finding points to"
        " the lines where the training thread was seen during that time. Only on a GPU."
    )
    knob = "compile_mode"
    also = ("batch_size", "optimizer_impl", "num_workers")
    one_finding = True

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU: host and device are the same")
        idle = case.side.idle_share
        if idle is None:
            raise NotJudgeable("the profile does not show when the device was busy")
        whole = iteration_s(case)
        if idle < IDLE_SHARE:
            return []
        lines = costliest_lines(case, *PHASES)
        steps = len(case.evidence.times_s)
        seen = ", ".join(
            f"{at(place)} ({duration_words(seconds / steps)} an iteration)"
            for place, seconds in lines
        )
        evidence = f"The device is idle for {of_iteration(idle * whole, whole)}."
        if seen:
            evidence += f" The training thread was seen most often at {seen}."
        advice = (
            "Move the work of these lines out of the loop, or give the device more work per call:"
            " larger batches, torch.compile."
        )
        return [self.finding(case, evidence, advice, idle * whole, [p for p, _ in lines])]
