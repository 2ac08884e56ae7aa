"""The job waits for its batches."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import (
    NAMED_SHARE,
    at,
    costliest_lines,
    iteration_s,
    loader_place,
    usual_s,
)
from autotune_spaces.domains import cores_per_rank
from autotune_spaces.knobs.num_workers import COMPUTES

# A tenth of the iteration: a perfect cure then gives 1.11x, clearly more than the 2% that confirm
# asks for. Half of what makes the loader *the* bottleneck (verdict/bottleneck.py).
WAIT_SHARE = 0.10
# asking a DataLoader for a batch that is ready takes 0.1 to 0.5 ms by itself
LEAST_WAIT_S = 1e-3
# in a batch; each costs a few tenths of a millisecond to receive from a worker
MANY_TENSORS = 8
# where the training process is seen while it receives tensors; it waits for them elsewhere
RECEIVING = (
    "multiprocessing.connection.",
    "multiprocessing.reduction.",
    "multiprocessing.resource_sharer.",
    "socket.",
    "torch.multiprocessing.",
    "torch.storage.",
    "torch._utils.",
    "torch._ops.",
)


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
        if not case.evidence.phase_times_s.get("data"):
            raise NotJudgeable("the wait for batches was not recorded")
        workers, wait = _workers(case), wait_s(case)
        if not wait:
            return []
        seen = costliest_lines(case, "data")
        lines = [place for place, seconds in seen if seconds >= NAMED_SHARE * seen[0][1]]
        built = loader_place(case)
        evidence = (
            f"{of_iteration(wait, whole)} is spent waiting for the next batch, with"
            f" num_workers={workers}."
        )
        if workers == 0 and lines:
            evidence += f" The training process makes the batches itself, most of the time at {at(lines[0])}."
        advice, knob = _cure(case, workers)
        places = [built, *(lines if workers == 0 or built is None else ())]
        return [self.finding(case, evidence, advice, wait, places, knob=knob)]


def wait_s(case: Case) -> float:
    """The typical wait for a batch per iteration, if it is long enough to be reported; else 0.0."""
    if case.job.loader is None and not case.evidence.loader:
        return 0.0
    wait = usual_s(case.evidence.phase_times_s.get("data", ()), group=_workers(case))
    return wait if wait >= max(WAIT_SHARE * iteration_s(case), LEAST_WAIT_S) else 0.0


def _workers(case: Case) -> int:
    return int(case.evidence.loader.get("num_workers", case.config.get("num_workers") or 0))


def _cure(case: Case, workers: int) -> tuple[str, str]:
    """Advice, and the knob that cures it; "" if none does."""
    loader, cores = case.job.loader, cores_per_rank(case.machine, case.job)
    if loader is not None and loader.iterable and not loader.worker_sharding:
        return (
            f"First split the data between workers, by torch.utils.data.get_worker_info() in"
            f" {loader.dataset}'s __iter__: as it is, each of them would read every sample. Then let"
            " worker processes prepare batches ahead of time: DataLoader(…, num_workers=…).",
            "",
        )
    if workers == 0:
        return (
            "Let worker processes prepare batches ahead of time: DataLoader(…, num_workers=…).",
            LoaderBound.knob,
        )
    if loader is not None and loader.batch_tensors >= MANY_TENSORS and _unpacks(case):
        return (
            f"A batch consists of {loader.batch_tensors} small tensors, which the training process"
            " receives one by one. Pack them into a few large ones in collate_fn (padded, or"
            " concatenated with their lengths), and take them apart in the training process.",
            "",
        )
    less = "do less work per sample: decode and resize once beforehand"
    if workers >= cores and case.job.reader and case.job.reader.cpu_share >= COMPUTES:
        return (
            f"{less.capitalize()}. More workers than the {cores} cores cannot help: they compute"
            " nearly all the time.",
            "",
        )
    return (f"Use more workers, or {less}, keep the data on a faster disk.", LoaderBound.knob)


def _unpacks(case: Case) -> bool:
    """Whether the training process spends most of the wait receiving tensors from workers."""
    seconds = {True: 0.0, False: 0.0}
    for frame in case.evidence.frames:
        if frame.phase == "data":
            seconds[frame.leaf.startswith(RECEIVING)] += frame.seconds
    return seconds[True] > seconds[False]
