"""Whether cuDNN benchmarks its algorithms before it picks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Undone, Value
from autotune_spaces.domains import need_convolutions, need_cuda, refuse_deterministic
from autotune_spaces.facts import JobFacts, Machine


class CudnnBenchmark(Knob):
    """A process knob: PyTorch caches the plan chosen for a shape for the life of the process, and
    checks that cache before this switch (aten/src/ATen/native/cudnn/Conv_v8.cpp, run_single_conv).
    Switching it in a running job would do nothing for shapes already seen. torch reads no variable
    for it, so it is set right after ``import torch``.
    """

    name = "cudnn_benchmark"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    start_up_cost = True
    allowed = (False, True)
    range = "false, true (CUDA)"
    card = Card(
        what=(
            "At the first convolution of each shape, cuDNN times its algorithms and keeps"
            " the fastest instead of relying on a heuristic."
        ),
        when_it_helps="Convolutional networks with inputs of a fixed size.",
        when_it_does_not=(
            "Inputs that keep changing size, since every new size is timed again; models without"
            " convolutions; CPUs."
        ),
        changes_loss=(
            "Algorithms add in different orders, so results round differently, and the"
            " choice may vary from run to run. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.benchmark",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return job.cudnn_benchmark

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        need_convolutions(job, flat=True)
        if job.cudnn_benchmark:
            raise NotApplicable("the job sets torch.backends.cudnn.benchmark = True itself")
        refuse_deterministic(job)
        return [False, True]

    def environment(self, value: Value) -> dict[str, str]:
        return {self.own_variable: "1" if value else "0"}

    def at_import(self, torch: Any, environ: Mapping[str, str]) -> None:
        if environ.get(self.own_variable) in ("0", "1"):
            torch.backends.cudnn.benchmark = environ[self.own_variable] == "1"

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if live.torch.backends.cudnn.benchmark is not value:
            return Undone(
                "the job set torch.backends.cudnn.benchmark to"
                f" {live.torch.backends.cudnn.benchmark} itself"
            )
        return None

    def snippet(self, value: Value) -> str:
        return f"torch.backends.cudnn.benchmark = {value}"
