"""How many processes prepare batches."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, Numerics, Scope, Value, Withdrawn
from autotune_spaces.domains import cores_per_rank, doubling, loader_of, whole
from autotune_spaces.facts import JobFacts, Machine

LEAST_SHM_GIB = 0.01  # workers hand batches over in /dev/shm; without room there the first batch dies with a bus error


class NumWorkers(Knob):
    name = "num_workers"
    scope = Scope.LIVE
    numerics = Numerics.EXACT
    dear = True
    loader = True
    range = "0, 1, 2, 4 … cores"
    card = Card(
        what="How many processes read and prepare batches beside the training process; 0 prepares them in the training "
        "process itself, while the model waits.",
        when_it_helps="The job spends a visible part of each iteration waiting for data: decoding, augmentation, slow disks.",
        when_it_does_not="Batches are ready at once (tensors in memory), or training already uses every core. Each worker "
        "also costs memory and start-up time at every epoch.",
        changes_loss="Not by itself. If the dataset or the collate function draws random numbers, each worker draws its "
        "own, so the augmentation differs, as with another seed.",
        source="https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return loader_of(job).num_workers

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        loader = loader_of(job)
        if loader.iterable and not loader.worker_sharding:
            raise Withdrawn(
                f"{loader.dataset} is an IterableDataset that does not ask get_worker_info(): with several workers "
                "every sample would be read once by each"
            )
        if loader.iterable and loader.batch_size is None and loader.num_workers == 0:
            raise Withdrawn(
                f"{loader.dataset} is an IterableDataset that makes its batches itself (batch_size=None), and the job uses no workers: "
                "what each of several workers would read cannot be checked. Give the job one worker if the dataset shares its data out rightly"
            )
        if loader.starts_anew and loader.num_workers == 0:
            raise Withdrawn(f"workers would run the job's script from its top again: {loader.starts_anew}")
        if machine.shm_gib < LEAST_SHM_GIB and loader.num_workers == 0:
            raise Withdrawn("/dev/shm has no free space, which workers need to hand over batches")
        return [0, *doubling(cores_per_rank(machine, job))]

    def check_value(self, value: Value) -> str | None:
        return whole(value, 0)

    def apply(self, live: LiveJob, value: Value) -> None:
        if live.loader is not None:
            live.loader.set(num_workers=value)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return "no DataLoader was iterated" if live.loader is None else None

    def snippet(self, value: Value) -> str:
        return f"DataLoader(..., num_workers={value})"
