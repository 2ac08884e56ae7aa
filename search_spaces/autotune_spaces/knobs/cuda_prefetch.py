"""Whether the next batch is copied to the GPU while the current one is computed."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Config, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import host_loader_of, need_cuda
from autotune_spaces.facts import JobFacts, Machine

VISIBLE = 0.01  # share of an iteration: 3% once the model has become three times as fast

SNIPPET = """\
def on_device(loader, device):  # for inputs, targets in on_device(loader, device): …
    side, batch = torch.cuda.Stream(device), None
    for host in loader:
        with torch.cuda.stream(side):
            copies = [tensor.to(device, non_blocking=True) for tensor in host]
            done = side.record_event()
        if batch is not None:
            yield batch
        torch.cuda.current_stream(device).wait_event(done)
        for copy in copies:
            copy.record_stream(torch.cuda.current_stream(device))
        batch = copies
    if batch is not None:
        yield batch"""


class CudaPrefetch(Knob):
    name = "cuda_prefetch"
    scope = Scope.LIVE
    numerics = Numerics.EXACT
    loader = True
    allowed = (False, True)
    range = "false, true (CUDA)"
    card = Card(
        what=(
            "Fetches the next batch and copies it to the GPU, on a separate stream, while"
            " the job computes with the current one. The job's own .to(device) or .cuda()"
            " then returns that copy."
        ),
        when_it_helps=(
            f"Copies take a visible part of the iteration (it is tried from {VISIBLE:.0%} on) and"
            " pin_memory is on; most of all where the job waits for the GPU in every step"
            " (loss.item()), so that non_blocking alone cannot overlap the copy with anything."
        ),
        when_it_does_not=(
            "The memory is not pinned; the job moves something other than the loader's"
            " tensors, converts them in the same call, or prefetches itself. It keeps one"
            " more batch in GPU memory. If the job modifies a batch through NumPy before"
            " moving it, the change is missed."
        ),
        changes_loss=(
            "No: the same batches in the same order. Without workers the dataset draws"
            " its random numbers one batch earlier, which matters if the job draws from"
            " the same stream."
        ),
        source="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return False

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        host_loader_of(job)
        if self.values is None and job.copy_share < VISIBLE:
            raise NotApplicable(
                f"copies to the GPU take only {job.copy_share:.1%} of an iteration, not counting its"
                " wait for batches"
            )
        return [False, True]

    def active(self, config: Config, defaults: Config) -> bool:
        return config.get("pin_memory", defaults.get("pin_memory")) is not False

    def apply(self, live: LiveJob, value: Value) -> None:
        live.control("cuda_prefetch").set(bool(value))

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return live.control("cuda_prefetch").effect() if value else None

    def snippet(self, value: Value) -> str:
        return SNIPPET if value else ""
