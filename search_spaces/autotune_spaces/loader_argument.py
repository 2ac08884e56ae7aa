"""The knobs that are arguments of the training DataLoader."""

from __future__ import annotations

from autotune_spaces.base import Knob, LiveJob, Numerics, Scope, Value
from autotune_spaces.domains import loader_of
from autotune_spaces.facts import JobFacts, Machine


class LoaderArgument(Knob):
    """An argument that has the knob's name. True or false, unless ``check_value`` says otherwise."""

    scope = Scope.LIVE
    numerics = Numerics.EXACT
    allowed = (False, True)
    dear = True
    loader = True

    def current(self, machine: Machine, job: JobFacts) -> Value:
        value: Value = getattr(loader_of(job), self.name)
        return value

    def apply(self, live: LiveJob, value: Value) -> None:
        if live.loader is not None:
            live.loader.set(**{self.name: value})

    def snippet(self, value: Value) -> str:
        return f"DataLoader(..., {self.name}={value})"
