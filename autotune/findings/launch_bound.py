"""So many operators, so small, that starting them is the work."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.explain.records import Finding, Operator
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import at, compute_s, costliest_frames, iteration_s
from autotune.words import duration_words

# Starting a CUDA kernel takes the host 2 to 10 µs and the device about 3 (NVIDIA, "Employing CUDA
# Graphs in a Dynamic Environment"); calling an aten operator takes 1 to 5 µs on a CPU, twice that
# under the profiler.
TINY_S = 10e-6
# ResNet-50 with its backward and its optimizer starts about 1,000 operators a step and keeps a
# device busy with them.
MANY = 1000
COST_SHARE = 0.20  # as for a bottleneck (stages/observe.py)


class LaunchBound(Rule):
    name = "launch-bound"
    title = "Many tiny operators"
    card = (
        f"At least {MANY} operators (on a GPU: kernels) an iteration are tiny: their verdict in the"
        f" roofline is overhead, or, where there is none, they take less than {TINY_S * 1e6:g} µs"
        f" each. Judged if they cost at least {COST_SHARE:.0%} of the iteration. The cost on a CPU:"
        " their time in the profile, less what profiling added to each call; on a GPU: the time it"
        " was idle. The place is the line the training thread was most often seen at."
    )
    knob = "compile_mode"
    also = ("batch_size",)
    explains = ("host-bound", "host-work")

    def judge(self, case: Case) -> list[Finding]:
        whole = iteration_s(case)
        return self._on_device(case, whole) if case.on_device else self._on_cpu(case, whole)

    def _on_cpu(self, case: Case, whole: float) -> list[Finding]:
        computing = compute_s(case)
        if not case.side.profiled_steps:
            raise NotJudgeable("it is not known how many iterations the operators are of")
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
            f"{calls:,.0f} tiny operators an iteration (most of all {first.name},"
            f" {first.calls / case.side.profiled_steps:,.0f} times) take {duration_words(cost)} of"
            f" its {duration_words(whole)}: the time goes into launching them."
        )
        return [self._told(case, evidence, cost)]

    def _on_device(self, case: Case, whole: float) -> list[Finding]:
        kernels, idle = case.side.kernels_per_step, case.side.idle_share
        if idle is None or not kernels:
            raise NotJudgeable("the profile shows no kernels")
        each, cost = whole * (1.0 - idle) / kernels, whole * idle
        if kernels < MANY or each >= TINY_S or cost < COST_SHARE * whole:
            return []
        evidence = (
            f"{kernels:,.0f} kernels an iteration of {duration_words(each)} each: the device waits"
            f" {duration_words(cost)} of {duration_words(whole)} ({idle:.0%}) for the next one to"
            " be started."
        )
        return [self._told(case, evidence, cost)]

    def _told(self, case: Case, evidence: str, cost: float) -> Finding:
        places = [
            p
            for p, _ in costliest_frames(case.evidence.frames, "forward", "other", "backward")
            if p.own
        ]
        if places:
            evidence += f" The training thread was seen most often at {at(places[0])}."
        advice = (
            "Work on whole tensors where a loop goes over parts of them; torch.compile fuses what"
            ' is left (mode="reduce-overhead" replays it as one CUDA graph on a GPU); larger'
            " batches make each operator worth its start."
        )
        return self.finding(case, evidence, advice, cost, places[:1])


def _unprofiled_s(case: Case, rows: Sequence[Operator], computing_s: float) -> float:
    """Seconds an iteration that ``rows`` take without the profiler.

    It adds about the same to each call, so what all operators together took longer under it than
    the watched iterations
    computed is shared out by calls: a table by time alone would make tiny operators look twice as
    dear as they are.
    """
    everything, steps = case.operators, case.side.profiled_steps
    added_s = max(0.0, sum(row.self_time_s for row in everything) / steps - computing_s)
    a_call_s = added_s * steps / max(1, sum(row.calls for row in everything))
    return max(0.0, sum(row.self_time_s - row.calls * a_call_s for row in rows) / steps)


def tiny(row: Operator) -> bool:
    """Its time is that of calling it."""
    return row.bound == "overhead" if row.bound else row.mean_s < TINY_S
