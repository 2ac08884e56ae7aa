"""So many small operators that launching them is the work."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.explain.records import Finding, Operator
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import at, compute_s, costliest_lines, iteration_s, phase_s
from autotune.words import duration_words

# Launching a CUDA kernel takes the host 2 to 10 µs and the device about 3 (NVIDIA, "Employing CUDA
# Graphs in a Dynamic Environment"); calling an aten operator takes 1 to 5 µs on a CPU, twice that
# under the profiler.
TINY_S = 10e-6
# ResNet-50 launches about 1,000 operators per step, backward and optimizer included, and keeps a
# device busy with them.
MANY = 1000
COST_SHARE = 0.20  # as for a bottleneck (verdict/bottleneck.py)


class LaunchBound(Rule):
    name = "launch-bound"
    title = "Many tiny operators"
    card = (
        f"At least {MANY} operators (on a GPU: kernels) per iteration are tiny: the roofline calls"
        " them overhead-bound or, where they have no verdict, they take less than"
        f" {TINY_S * 1e6:g} µs each. Threshold: {COST_SHARE:.0%} of an iteration. On a CPU,"
        " the cost is their time in the profile, less what profiling added to each call; on a GPU,"
        " it is the GPU's idle time without the wait for batches. The finding points to the line"
        " where the training thread was seen most often."
    )
    knob = "compile_mode"
    also = ("batch_size",)
    explains = ("host-bound", "host-work")
    one_finding = True

    def judge(self, case: Case) -> list[Finding]:
        whole = iteration_s(case)
        return self._on_device(case, whole) if case.on_device else self._on_cpu(case, whole)

    def _on_cpu(self, case: Case, whole: float) -> list[Finding]:
        computing = compute_s(case)
        if not case.side.profiled_steps:
            raise NotJudgeable("it is unknown how many iterations were profiled")
        rows = [row for row in case.operators if tiny(row)]
        calls = (
            sum(row.calls for row in rows if row.name.startswith("aten::"))
            / case.side.profiled_steps
        )
        cost = _unprofiled_s(case, rows, computing)
        if calls < MANY or cost < COST_SHARE * whole:
            return []
        first = max(rows, key=lambda row: row.self_time_s)
        evidence = (
            f"{calls:,.0f} tiny operators per iteration (above all {first.name},"
            f" {first.calls / case.side.profiled_steps:,.0f} times) take {duration_words(cost)} of"
            f" its {duration_words(whole)}: the time goes into launching them."
        )
        return [self._told(case, evidence, cost)]

    def _on_device(self, case: Case, whole: float) -> list[Finding]:
        kernels, idle = case.side.kernels_per_step, case.side.idle_share
        if idle is None or not kernels:
            raise NotJudgeable("the profile shows no kernels")
        each = whole * (1.0 - idle) / kernels
        cost = max(0.0, whole * idle - phase_s(case, "data"))  # batches are waited for meanwhile
        if kernels < MANY or each >= TINY_S or cost < COST_SHARE * whole:
            return []
        evidence = (
            f"{kernels:,.0f} kernels per iteration of {duration_words(each)} each: the device"
            f" spends {duration_words(cost)} of {duration_words(whole)} ({cost / whole:.0%}) waiting for the"
            " next launch."
        )
        return [self._told(case, evidence, cost)]

    def _told(self, case: Case, evidence: str, cost: float) -> Finding:
        places = [p for p, _ in costliest_lines(case, "forward", "other", "backward")]
        if places:
            evidence += f" The training thread was seen most often at {at(places[0])}."
        advice = (
            "Replace loops over parts of tensors by operations on whole tensors; torch.compile"
            ' fuses what is left (mode="reduce-overhead" replays it as one CUDA graph on a GPU);'
            " larger batches give each operator more work."
        )
        return self.finding(case, evidence, advice, cost, places[:1])


def _unprofiled_s(case: Case, rows: Sequence[Operator], computing_s: float) -> float:
    """Seconds per iteration that ``rows`` take without the profiler.

    The profiler adds about the same to each call. So the difference between the time of all
    operators under it and the time the watched iterations computed is divided by calls. Divided by
    time, tiny operators would look twice as expensive as they are.
    """
    everything, steps = case.operators, case.side.profiled_steps
    added_s = max(0.0, sum(row.self_time_s for row in everything) / steps - computing_s)
    a_call_s = added_s * steps / max(1, sum(row.calls for row in everything))
    return max(0.0, sum(row.self_time_s - row.calls * a_call_s for row in rows) / steps)


def tiny(row: Operator) -> bool:
    """Whether its time is mostly that of calling it."""
    return row.bound == "overhead" if row.bound else row.mean_s < TINY_S
