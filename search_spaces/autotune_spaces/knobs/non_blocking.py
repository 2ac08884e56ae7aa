"""Whether the program waits until a batch has been copied to the GPU."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Config, Knob, LiveJob, Numerics, Scope, Value
from autotune_spaces.domains import host_loader_of, need_cuda
from autotune_spaces.facts import JobFacts, Machine


class NonBlocking(Knob):
    name = "non_blocking"
    scope = Scope.LIVE
    numerics = Numerics.EXACT
    loader = True
    allowed = (False, True)
    range = "false, true"
    card = Card(
        what=(
            "Starts copies of a DataLoader's pinned batches to the GPU without waiting"
            " for them; the GPU keeps its own order, so the first kernel that needs the"
            " batch still finds it complete. False leaves the job's own calls unchanged."
            " Copies of other tensors are never changed: the job might overwrite a buffer"
            " while it is being copied."
        ),
        when_it_helps="Together with pin_memory, when Python has work to do while the copy runs.",
        when_it_does_not=(
            "The memory is not pinned, the batch is small, the GPU is never idle anyway, or the"
            " job first copies batches into its own memory."
        ),
        changes_loss=(
            "No: it affects only copies of pinned batches to the GPU, never copies back."
        ),
        source="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return False

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        host_loader_of(job)
        return [False, True]

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
