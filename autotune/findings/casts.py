"""Numbers cast to float32 and back in the middle of half precision."""

from __future__ import annotations

from autotune.explain.records import Finding, Operator
from autotune.findings.base import Case, Rule, of_iteration
from autotune.findings.measures import compute_s, dimensions, half_dtype, iteration_s, need

# autocast's own casts of weights and losses stay below it in common models; a cure of less is
# hardly measured
COST_SHARE = 0.05
COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")


class Casts(Rule):
    name = "casts"
    title = "Casts around an operator without half precision"
    card = (
        "Under autocast (or with half-precision parameters), an operator that is given half"
        " precision gives back float32, or the job casts up itself. The cost is the time of the"
        " copies with the shapes of those tensors, in forward and backward: their share of all"
        " operator time, taken of the time the watched iterations computed; reported from"
        f" {COST_SHARE:.0%} of an iteration on. Source: the list of operators that autocast keeps"
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
            "Keep the neighbours of this operator in one precision: a variant that takes half"
            " precision, or all of the stretch in float32 (torch.autocast(…, enabled=False) around"
            " it)."
        )
        return [self.finding(case, evidence, advice, cost, [c.place for c in calls])]


def _casts(row: Operator) -> bool:
    """False where the types are known and are all the same."""
    kinds = set(row.dtypes.replace(",", " ").split())
    return not kinds or len(kinds) > 1 or row.name != "aten::copy_"
