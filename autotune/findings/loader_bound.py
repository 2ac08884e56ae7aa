"""The job waits for its batches."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import at, costliest_frames, iteration_s, place_of, usual_s

# A tenth of the iteration: what a perfect cure gives is then 1.11x, clear of the 2 % that confirm
# asks for. Half of what names the loader as *the* bottleneck (stages/observe.py).
WAIT_SHARE = 0.10
# asking a DataLoader for a batch that lies ready takes some 0.1 to 0.5 ms by itself
LEAST_WAIT_S = 1e-3


class LoaderBound(Rule):
    name = "loader-bound"
    title = "Waiting for batches"
    card = (
        f"The usual wait for the next batch (stragglers cut down) is at least {WAIT_SHARE:.0%} of"
        f" an iteration and more than {LEAST_WAIT_S * 1e3:g} ms. The cost is that wait. The place"
        " is where the DataLoader is built, and, without workers, the line of the data set that"
        " takes the time."
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
            f"{of_iteration(wait, whole)} are spent waiting for the next batch, with"
            f" num_workers={workers}."
        )
        if workers == 0 and seen:
            evidence += (
                " Batches are made by the training process itself, most of the time at"
                f" {at(seen[0][0])}."
            )
        advice = (
            "Let worker processes prepare batches ahead of time: DataLoader(…, num_workers=…)."
            if workers == 0
            else (
                "More workers, or less work a sample: decode and resize once beforehand, keep the"
                " data on a faster disk."
            )
        )
        places = [built, *(p for p, _ in seen if workers == 0 or built is None)]
        return [self.finding(case, evidence, advice, wait, places)]
