"""Whether batches are placed in page-locked memory."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, LiveJob, Value
from autotune_spaces.domains import need_cuda
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.loader_argument import LoaderArgument


class PinMemory(LoaderArgument):
    name = "pin_memory"
    range = "false, true"
    card = Card(
        what=(
            "Puts batches into page-locked host memory, from which copies to the GPU are faster"
            " and, with non_blocking, run while the program continues."
        ),
        when_it_helps=(
            "Batches are large and the copy to the GPU takes a visible part of the iteration."
        ),
        when_it_does_not=(
            "Training on a CPU, or small batches: pinning itself takes host memory and the time of"
            " a thread."
        ),
        changes_loss="No.",
        source="https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
    )

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        return super().candidates(machine, job)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return (
            "memory can only be pinned where CUDA is available"
            if value and live.device != "cuda"
            else None
        )
