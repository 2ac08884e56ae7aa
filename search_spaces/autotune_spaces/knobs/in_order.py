"""Whether batches must be delivered in the sampler's order."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Numerics, Value
from autotune_spaces.domains import repeated_loader_of
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.loader_argument import LoaderArgument


class InOrder(LoaderArgument):
    name = "in_order"
    least_workers = 2
    # Not exact: the order then depends on timing, so every run has another trajectory.
    numerics = Numerics.STATISTICAL
    ordered = False
    example = False
    range = "true, false"
    card = Card(
        what=(
            "Whether the DataLoader returns batches in the sampler's order, or each batch as soon"
            " as a worker has it ready."
        ),
        when_it_helps=(
            "Several workers whose batches take very different times: one slow batch no"
            " longer holds up the rest."
        ),
        when_it_does_not=(
            "There are fewer than two workers, or all batches take about the same time."
            " Runs are no longer reproducible."
        ),
        changes_loss=(
            "Yes, slightly: the same samples in a different order, which varies from run to run."
        ),
        source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    )

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        repeated_loader_of(job)
        return [True, False]
