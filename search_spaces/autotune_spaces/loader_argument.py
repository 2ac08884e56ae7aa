"""The knobs that are arguments of the training DataLoader."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Config, Knob, LiveJob, Numerics, Scope, Value
from autotune_spaces.domains import host_loader_of, loader_of
from autotune_spaces.facts import JobFacts, Machine


class LoaderArgument(Knob):
    """An argument that has the knob's name. True or false, unless ``least`` says otherwise."""

    scope = Scope.LIVE
    numerics = Numerics.EXACT
    allowed: tuple[Value, ...] = (False, True)
    costly = True
    loader = True
    tried: tuple[Value, ...] = (False, True)
    least_workers = 0  # with fewer, the value has no meaning

    def current(self, machine: Machine, job: JobFacts) -> Value:
        value: Value = getattr(loader_of(job), self.name)
        return value

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        host_loader_of(job)
        return self.tried

    def active(self, config: Config, defaults: Config) -> bool:
        workers = config.get("num_workers", defaults.get("num_workers"))
        return not isinstance(workers, int) or workers >= self.least_workers

    def apply(self, live: LiveJob, value: Value) -> None:
        if live.loader is not None:
            live.loader.set(**{self.name: value})

    def snippet(self, value: Value) -> str:
        return f"DataLoader(..., {self.name}={value})"
