"""Whether the program waits for a batch to reach the GPU."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Config, Knob, LiveJob, Numerics, Scope, Value
from autotune_spaces.domains import need_cuda, true_or_false
from autotune_spaces.facts import JobFacts, Machine


class NonBlocking(Knob):
    name = "non_blocking"
    scope = Scope.LIVE
    numerics = Numerics.EXACT
    loader = True
    range = "false, true"
    card = Card(
        what=(
            "Copies of a DataLoader's pinned batches to the GPU are started and not waited for; the"
            " GPU keeps its own order, so the first kernel that needs the batch still finds it"
            " complete. False leaves the job's own calls as they are, and so are copies of other"
            " tensors always: a buffer that the job fills anew could change while it is copied."
        ),
        when_it_helps="Together with pin_memory, when Python is busy while the copy runs.",
        when_it_does_not=(
            "The memory is not pinned, the batch is small, the GPU is never idle anyway, or the job"
            " copies batches into memory of its own first."
        ),
        changes_loss=(
            "No: only copies from pinned batches to the GPU are touched, never the way back."
        ),
        source="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return False

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        return [False, True]

    def check_value(self, value: Value) -> str | None:
        return true_or_false(value)

    def active(self, config: Config, defaults: Config) -> bool:
        return config.get("pin_memory", defaults.get("pin_memory")) is not False

    def apply(self, live: LiveJob, value: Value) -> None:
        live.control("non_blocking").set(True if value else None)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if value and live.device != "cuda":
            return "there is no device to copy to"
        return live.control("non_blocking").effect()

    def snippet(self, value: Value) -> str:
        return "batch = batch.to(device, non_blocking=True)" if value else ""
