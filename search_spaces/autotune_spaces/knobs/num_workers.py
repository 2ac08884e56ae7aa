"""How many processes prepare batches.

    0, 1, 2, 4 … cores            always
    … 64                          where the reader was seen to wait: as many as it can use, doubled once

The share s of a fetch that is computed bounds what workers can do together: n of them need n·s
cores. With w for fetching a batch and c for computing on it, about w / c workers keep up with the
model. What the machine or the data cannot hold is left out: memory, /dev/shm, open files, batches
an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import cores_per_rank, doubling, loader_of, ranks_here, whole
from autotune_spaces.facts import JobFacts, Machine

# workers hand batches over in /dev/shm; without room there the first batch dies with a bus error
LEAST_SHM_GIB = 0.01
# workers tried; what is read at a rate that this many do not reach is read from the wrong place
MOST = 64
COMPUTES = 0.75  # CPU share of a fetch from which on there is nothing to gain beyond the cores
PREFETCH = 2  # torch's own

# What a forked worker takes of its own: torch's threads and queues, and its copies of pages that
# reference counts are written to.
WORKER_GIB, COPIED_SHARE = 0.03, 0.25
# of the memory that is available: training may grow, and other knobs take their part
MEMORY_SHARE = 0.5
SHM_SHARE = 0.9
# open files a worker costs the training process: both ends of its index queue, and what tells that
# it has ended
PIPES = 3
FILES = 4  # with one to spare; and one for each tensor on its way


class NumWorkers(Knob):
    name = "num_workers"
    scope = Scope.LIVE
    numerics = Numerics.EXACT
    dear = True
    loader = True
    example = 4
    range = "0, 1, 2, 4 … cores; … 64 where the reader waits"
    card = Card(
        what=(
            "How many processes read and prepare batches beside the training process; 0 prepares"
            " them in the training process itself, while the model waits."
        ),
        when_it_helps=(
            "The job spends a visible part of each iteration waiting for data: decoding,"
            " augmentation, slow disks. A dataset that itself waits (network storage, a server)"
            " gains from many more workers than cores, and they are tried where it was seen to"
            " wait."
        ),
        when_it_does_not=(
            "Batches are ready at once (tensors in memory), or training already uses every core."
            " Each worker also costs memory, open files, and start-up time at every epoch."
        ),
        changes_loss=(
            "Not by itself. If the dataset or the collate function draws random numbers, each"
            " worker draws its own, so the augmentation differs, as with another seed."
        ),
        source=(
            "https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading"
        ),
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return loader_of(job).num_workers

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        loader = loader_of(job)
        if loader.iterable and not loader.worker_sharding:
            raise NotApplicable(
                f"{loader.dataset} is an IterableDataset that does not ask get_worker_info(): with"
                " several workers every sample would be read once by each"
            )
        if loader.iterable and loader.batch_size is None and loader.num_workers == 0:
            raise NotApplicable(
                f"{loader.dataset} is an IterableDataset that makes its batches itself"
                " (batch_size=None), and the job uses no workers: what each of several workers"
                " would read cannot be checked. Give the job one worker if the dataset shares its"
                " data out rightly"
            )
        if loader.starts_anew and loader.num_workers == 0:
            raise NotApplicable(
                f"workers would run the job's script from its top again: {loader.starts_anew}"
            )
        if machine.shm_gib < LEAST_SHM_GIB and loader.num_workers == 0:
            raise NotApplicable(
                "/dev/shm has no free space, which workers need to hand over batches"
            )
        most = min(room(machine, job).values(), default=MOST)
        wanted = {0, *doubling(cores_per_rank(machine, job)), *doubling(useful(machine, job))}
        return [n for n in sorted(wanted) if n <= most]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        process = job.process
        if (
            process.most_files
            and isinstance(value, int)
            and PIPES * value > process.most_files - process.open_files
        ):
            return (
                f"{value} workers cost {PIPES * value} open files, and of the {process.most_files}"
                f" that the process may have {process.open_files} are in use (ulimit -n)"
            )
        return None

    def check_value(self, value: Value) -> str | None:
        return whole(value, 0)

    def apply(self, live: LiveJob, value: Value) -> None:
        if live.loader is not None:
            live.loader.set(num_workers=value)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return "no DataLoader was iterated" if live.loader is None else None

    def snippet(self, value: Value) -> str:
        return f"DataLoader(..., num_workers={value})"


def useful(machine: Machine, job: JobFacts) -> int:
    """The most workers worth trying beyond the cores, a power of two; 0 if the reader computes, or
    nothing is known of it.
    """
    reader = job.reader
    if reader is None or reader.cpu_share >= COMPUTES:
        return 0
    most = min(MOST, cores_per_rank(machine, job) / max(reader.cpu_share, 1 / MOST))
    if reader.workers_needed is not None:
        most = min(most, 2 * 2 ** math.ceil(math.log2(max(1.0, reader.workers_needed))))
    return int(2 ** math.floor(math.log2(max(1.0, most))))


def room(machine: Machine, job: JobFacts) -> dict[str, int]:
    """What bounds the number of workers -> how many it holds. What is not known bounds nothing."""
    loader, ranks = loader_of(job), ranks_here(machine, job)
    queued_gib = (loader.prefetch_factor or PREFETCH) * loader.batch_mib / 1024
    found: dict[str, int] = {}
    if loader.length:
        found["batches an epoch"] = loader.length
    if machine.available_gib and job.process.memory_gib:
        worker_gib = WORKER_GIB + COPIED_SHARE * job.process.memory_gib + queued_gib
        found["memory"] = int(MEMORY_SHARE * machine.available_gib / ranks / worker_gib)
    if queued_gib:
        found["/dev/shm"] = int(SHM_SHARE * machine.shm_gib / ranks / queued_gib)
    if job.process.most_files:
        free = job.process.most_files - job.process.open_files
        found["open files"] = free // (
            FILES + (loader.prefetch_factor or PREFETCH) * max(1, loader.batch_tensors)
        )
    return found
