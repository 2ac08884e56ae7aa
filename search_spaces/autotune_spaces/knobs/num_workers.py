"""How many processes prepare batches.

    0, 1, 2, 4 … cores            always
    … 64                          where the reader was seen to wait: as many as it can use, doubled once

If a share s of each fetch is CPU time, n workers need n·s cores, which limits their number. If a
fetch takes w and the model takes c per batch, about w / c workers keep up with the model. Counts
that exceed memory, /dev/shm, open files or the batches per epoch are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune_spaces.base import Card, LiveJob, NotApplicable, Value
from autotune_spaces.domains import (
    DEFAULT_PREFETCH,
    NO_LOADER,
    cores_per_rank,
    doubling,
    host_loader_of,
    loader_of,
    ranks_here,
)
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine
from autotune_spaces.loader_argument import LoaderArgument

# workers pass batches through /dev/shm; if it is full, the first batch fails with a bus error
LEAST_SHM_GIB = 0.01
# most workers tried; data that needs more should be stored somewhere faster
MOST = 64
COMPUTES = 0.75  # CPU share of a fetch above which more workers than cores cannot help

# Memory of a forked worker: torch's threads and queues, and the share of the parent's memory that
# is copied because reference counts are written to it.
WORKER_GIB, COPIED_SHARE = 0.03, 0.25
# share of the available memory: training may grow, and other knobs need some
MEMORY_SHARE = 0.5
SHM_SHARE = 0.9
# open files of the training process per worker: both ends of its index queue, and its sentinel
PIPES = 3
FILES = 4  # the same with one spare, plus one for each tensor in flight


class NumWorkers(LoaderArgument):
    name = "num_workers"
    allowed = ()
    least = 0
    example = 4
    range = "0, 1, 2, 4 … cores; … 64 where the reader waits"
    card = Card(
        what=(
            "How many processes read and prepare batches next to the training process; 0"
            " prepares them in the training process itself, while the model waits."
        ),
        when_it_helps=(
            "The job spends a visible part of each iteration waiting for data: decoding,"
            " augmentation, slow disks. A dataset that itself waits (network storage, a server)"
            " gains from many more workers than cores; such numbers are tried where the dataset"
            " was seen to wait."
        ),
        when_it_does_not=(
            "Batches are ready at once (tensors in memory), or training already uses every core."
            " Each worker also costs memory, open files, and start-up time at every epoch."
        ),
        changes_loss=(
            "Not by itself. If the dataset or the collate function draws random numbers, each"
            " worker draws its own, so the augmentation differs, as with a different seed."
            " autotune does not change the knob if the dataset keeps its own random generator, of"
            " which every worker would have the same copy, or an open file, whose position all"
            " workers would share; if the job's worker_init_fn seeds the workers alike in every"
            " epoch; or if an epoch of an IterableDataset would have another number of batches."
            " Each worker has its own copy of the dataset, made when an epoch begins: if the loop or"
            " fetching itself changes it (a replay buffer, hard examples, a counter that anneals the"
            " augmentation), leave this knob out of the search space. The sampler runs ahead of the"
            " training by the batches that workers prefetch, also in a checkpoint that saves its"
            " position."
        ),
        source=(
            "https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading"
        ),
    )

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        loader = host_loader_of(job)
        if loader.iterable and not loader.worker_sharding:
            raise NotApplicable(
                f"{loader.dataset} is an IterableDataset that does not split its data by"
                " get_worker_info(): with several workers, each of them would read every"
                " sample"
            )
        if loader.iterable and loader.batch_size is None and loader.num_workers == 0:
            raise NotApplicable(
                f"{loader.dataset} is an IterableDataset that makes its batches itself"
                " (batch_size=None), and the job uses no workers: it cannot be checked"
                " what each worker would read. If the dataset splits its data between"
                " workers correctly, set num_workers=1 in the job"
            )
        if loader.starts_anew and loader.num_workers == 0:
            raise NotApplicable(
                f"workers would run the job's script again from the top: {loader.starts_anew}"
            )
        if loader.own_generator and loader.num_workers == 0:
            raise NotApplicable(
                f"fetching draws from a random generator of the dataset ({loader.own_generator}):"
                " every worker would start from the same copy of it, in every epoch. Seed it in a"
                " worker_init_fn"
            )
        if loader.fixed_seeds and loader.num_workers == 0:
            raise NotApplicable(
                f"the job's worker_init_fn ({loader.fixed_seeds}) gives the workers the same seeds in"
                " every epoch, so that random augmentation would repeat itself. Derive them from"
                " torch.initial_seed()"
            )
        if loader.open_file and loader.num_workers == 0:
            raise NotApplicable(
                f"the dataset keeps a file open ({loader.open_file}), whose position all workers"
                " would share: they would read each other's data. Open it in a worker_init_fn; or,"
                " if each worker already opens its own, set num_workers=1 in the job"
            )
        if machine.shm_gib < LEAST_SHM_GIB and loader.num_workers == 0:
            raise NotApplicable(
                "/dev/shm has no free space, which workers need to hand over batches"
            )
        rooms = room(machine, job)
        most = min(rooms.values(), default=MOST)
        if most < 1 and self.values is None and loader.num_workers == 0:
            scarce = min(rooms, key=lambda resource: rooms[resource])
            raise NotApplicable(f"even one worker would need more {scarce} than can be spared")
        wanted = {0, *doubling(cores_per_rank(machine, job)), *doubling(useful(machine, job))}
        return [n for n in sorted(wanted) if n <= most]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if isinstance(value, int) and (why := _other_epochs(loader_of(job), value)):
            return why
        process = job.process
        if (
            process.most_files
            and isinstance(value, int)
            and PIPES * value > process.most_files - process.open_files
        ):
            return (
                f"{value} workers need {PIPES * value} open files, but"
                f" {process.open_files} of the {process.most_files} that the process may"
                " have are in use (ulimit -n)"
            )
        return None

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return NO_LOADER if live.loader is None else None

    def snippet(self, value: Value) -> str:
        # torch refuses these arguments without workers
        without = "" if value else ", persistent_workers=False, prefetch_factor=None"
        return f"DataLoader(..., num_workers={value}{without})"


def _other_epochs(loader: LoaderFacts, workers: int) -> str:
    """Why an epoch of an IterableDataset would have another number of batches; "" if it would not.
    Each worker ends with a smaller batch of its own.
    """
    samples, size = loader.samples, loader.batch_size
    if not (loader.iterable and samples and size):
        return ""
    each = math.floor if loader.drop_last else math.ceil
    own, other = (
        n * each(math.ceil(samples / n) / size)
        for n in (max(loader.num_workers, 1), max(workers, 1))
    )
    if own == other:
        return ""
    return (
        f"with {workers} workers an epoch of {loader.dataset} would have {other} batches instead of"
        f" {own}: each worker ends with a smaller batch of its own"
    )


def useful(machine: Machine, job: JobFacts) -> int:
    """Most workers worth trying beyond the number of cores, a power of two; 0 if the reader is
    CPU-bound or unknown.
    """
    reader = job.reader
    if reader is None or reader.cpu_share >= COMPUTES:
        return 0
    most = min(MOST, cores_per_rank(machine, job) / max(reader.cpu_share, 1 / MOST))
    if reader.workers_needed is not None:
        most = min(most, 2 * 2 ** math.ceil(math.log2(max(1.0, reader.workers_needed))))
    return int(2 ** math.floor(math.log2(max(1.0, most))))


def room(machine: Machine, job: JobFacts) -> dict[str, int]:
    """Resource -> how many workers it allows. Unknown resources are left out."""
    loader, ranks = loader_of(job), ranks_here(machine, job)
    queued_gib = (loader.prefetch_factor or DEFAULT_PREFETCH) * loader.batch_mib / 1024
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
            FILES + (loader.prefetch_factor or DEFAULT_PREFETCH) * max(1, loader.batch_tensors)
        )
    return found
