"""The job waits for its batches."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import at, costliest_frames, iteration_s, place_of, usual_s

# A tenth of the iteration: a perfect cure then gives 1.11x, clearly more than the 2% that confirm
# asks for. Half of what makes the loader *the* bottleneck (stages/observe.py).
WAIT_SHARE = 0.10
# asking a DataLoader for a batch that is ready takes 0.1 to 0.5 ms by itself
LEAST_WAIT_S = 1e-3


class LoaderBound(Rule):
    name = "loader-bound"
    title = "Waiting for batches"
    card = (
        f"The typical wait for the next batch (outliers capped) is at least {WAIT_SHARE:.0%} of an"
        f" iteration and more than {LEAST_WAIT_S * 1e3:g} ms. The cost is that wait. The finding"
        " points to where the DataLoader is built and, without workers, to the line of the dataset"
        " that takes the time."
    )
    knob = "num_workers"
    also = ("prefetch_factor", "persistent_workers", "in_order", "pin_memory", "batch_size")
    explains = ("host-bound",)

    def judge(self, case: Case) -> list[Finding]:
        whole = iteration_s(case)
        if case.job.loader is None and not case.evidence.loader:
            raise NotJudgeable("the job uses no DataLoader")
        waits = case.evidence.phase_times_s.get("data", ())
        if not waits:
            raise NotJudgeable("the wait for batches was not recorded")
        workers = int(case.evidence.loader.get("num_workers", case.config.get("num_workers") or 0))
        wait = usual_s(waits, group=workers)
        if wait < max(WAIT_SHARE * whole, LEAST_WAIT_S):
            return []
        seen = [(p, s) for p, s in costliest_frames(case.evidence.frames, "data") if p.own]
        built = place_of(case.evidence.loader.get("place"))
        evidence = (
            f"{of_iteration(wait, whole)} is spent waiting for the next batch, with"
            f" num_workers={workers}."
        )
        if workers == 0 and seen:
            evidence += (
                " The training process makes the batches itself, most of the time at"
                f" {at(seen[0][0])}."
            )
        advice = (
            "Let worker processes prepare batches ahead of time: DataLoader(…, num_workers=…)."
            if workers == 0
            else (
                "Use more workers, or do less work per sample: decode and resize once beforehand,"
                " keep the data on a faster disk."
            )
        )
        places = [built, *(p for p, _ in seen if workers == 0 or built is None)]
        return [self.finding(case, evidence, advice, wait, places)]
