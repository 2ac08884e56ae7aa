"""How many batches each worker keeps ready."""

from __future__ import annotations

from autotune_spaces.base import Card, Value
from autotune_spaces.domains import DEFAULT_PREFETCH, loader_of
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.loader_argument import LoaderArgument


class PrefetchFactor(LoaderArgument):
    name = "prefetch_factor"
    allowed = ()
    least = 1
    tried = (2, 4, 8)
    least_workers = 1
    example = 4
    range = "2, 4, 8"
    card = Card(
        what="How many batches each worker prepares in advance.",
        when_it_helps=(
            "Batches take very different times to prepare (large and small files, an"
            " occasionally slow disk): a longer queue bridges the slow ones."
        ),
        when_it_does_not=(
            "There are no workers, or data is too slow on average: then the queue is empty,"
            " however long it may be. Memory grows with workers × prefetch_factor × batch size."
        ),
        changes_loss="No: the same batches in the same order.",
        source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return loader_of(job).prefetch_factor or DEFAULT_PREFETCH
