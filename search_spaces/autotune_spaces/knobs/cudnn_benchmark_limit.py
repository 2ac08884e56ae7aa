"""How many algorithms cuDNN benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune_spaces.base import Card, Config, Knob, LiveJob, Numerics, Scope, Undone, Value
from autotune_spaces.domains import need_convolutions, need_cuda, refuse_deterministic
from autotune_spaces.facts import JobFacts, Machine


class CudnnBenchmarkLimit(Knob):
    """A process knob for the same reason as cudnn_benchmark: chosen plans are cached."""

    name = "cudnn_benchmark_limit"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    start_up_cost = True
    ordered = False  # 0 means "all", so neighboring values do not behave alike
    least = 0
    example = 0
    range = "10, 0 = all (CUDA)"
    card = Card(
        what=(
            "How many of cuDNN's algorithms are timed for each shape when cudnn_benchmark"
            " is on; 0 means all of them."
        ),
        when_it_helps="The fastest algorithm is not among the ten that cuDNN ranks first.",
        when_it_does_not=(
            "cudnn_benchmark is off. Timing all of them makes the first iterations longer"
            " and temporarily needs memory."
        ),
        changes_loss=(
            "Like cudnn_benchmark: a different algorithm rounds differently. The loss"
            " check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.benchmark_limit",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return job.cudnn_benchmark_limit

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        need_convolutions(job, flat=True)
        refuse_deterministic(job)
        return [10, 0]

    def active(self, config: Config, defaults: Config) -> bool:
        return config.get("cudnn_benchmark", defaults.get("cudnn_benchmark")) is not False

    def environment(self, value: Value) -> dict[str, str]:
        return {self.own_variable: str(value)}

    def at_import(self, torch: Any, environ: Mapping[str, str]) -> None:
        if environ.get(self.own_variable, "").isdigit() and torch.backends.cudnn.is_available():
            torch.backends.cudnn.benchmark_limit = int(environ[self.own_variable])

    def effect(self, live: LiveJob, value: Value) -> str | None:
        now = live.torch.backends.cudnn.benchmark_limit
        return (
            None
            if now is None or now == value
            else Undone(f"the job set torch.backends.cudnn.benchmark_limit to {now} itself")
        )

    def snippet(self, value: Value) -> str:
        return f"torch.backends.cudnn.benchmark_limit = {value}"
