"""Tensors cast to float32 and back in the middle of half precision."""

from __future__ import annotations

from autotune.explain.records import Finding, Operator
from autotune.findings.base import Case, Rule, of_iteration
from autotune.findings.measures import compute_s, dimensions, half_dtype, iteration_s, need

# autocast's own casts of weights and losses stay below it in common models; the gain from curing
# less could hardly be measured
COST_SHARE = 0.05
COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")


class Casts(Rule):
    name = "casts"
    title = "Casts around an operator without half precision"
    card = (
        "Under autocast (or with half-precision parameters), an operator returns float32 for"
        " half-precision input, or the job itself casts up. The cost is the time of copies with"
        " the shapes of those tensors, in forward and backward: their share of all operator time,"
        " applied to the compute time of the watched iterations. Threshold:"
        f" {COST_SHARE:.0%} of an iteration. Source: the list of operators that autocast runs"
        " in float32, https://docs.pytorch.org/docs/stable/amp.html."
    )

    def judge(self, case: Case) -> list[Finding]:
        half = half_dtype(case)
        if not half:
            return []
        need(case, "calls", "copies")
        whole, computing = iteration_s(case), compute_s(case)
        calls = [c for c in case.evidence.calls if c.kind == "cast"]
        shapes = {tuple(s) for c in calls for s in dimensions(c.detail)}
        copies = [
            row
            for row in case.operators
            if row.name in COPIES
            and any(tuple(s) in shapes for s in dimensions(row.shapes))
            and _casts(row)
        ]
        cost = sum(row.share for row in copies) * computing
        if not calls or cost < COST_SHARE * whole:
            return []
        calls.sort(key=lambda c: -c.nbytes)
        first = calls[0]
        evidence = (
            f"Under {half}, {first.detail} is cast to float32 and back: casting takes"
            f" {of_iteration(cost, whole)}."
        )
        advice = (
            "Keep this operator and its neighbors in one precision: use a variant that supports"
            " half precision, or run the whole stretch in float32 (inside"
            " torch.autocast(…, enabled=False))."
        )
        return [self.finding(case, evidence, advice, cost, [c.place for c in calls])]


def _casts(row: Operator) -> bool:
    """False if it copies between tensors of one known type."""
    kinds = set(row.dtypes.replace(",", " ").split())
    return not kinds or len(kinds) > 1 or row.name != "aten::copy_"
