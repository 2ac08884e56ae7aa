"""Reading the local variables of the job's running functions changes nothing there."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch  # noqa: F401 - its frames are told by its directory

from autotune_trials.agent.facts.construction import construction_frame
from autotune_trials.agent.facts.source_calls import name_of


class Big:
    """As a checkpoint."""


class Built:
    def __init__(self, where: list[Any]) -> None:
        where.append(construction_frame(self, sys._getframe()))


class Derived(Built):
    def __init__(self, where: list[Any]) -> None:
        local = where
        super().__init__(local)


def read(value: Any) -> str:
    return name_of(value, sys._getframe(1))


def test_what_a_function_drops_is_gone() -> None:
    def job() -> tuple[Any, ...]:  # without assert, for which pytest calls locals() there
        model, checkpoint = Big(), Big()
        dropped = weakref.ref(checkpoint)
        names = read(model), read(checkpoint)
        Derived([])
        del checkpoint
        return names, dropped(), read(model)

    assert job() == (("model", "checkpoint"), None, "model")


def test_the_jobs_own_locals_stay_as_they_are() -> None:
    def job(lr: float = 0.1) -> dict[str, Any]:
        config = locals()
        model = Big()
        read(model)
        Derived([])
        return config

    assert job() == {"lr": 0.1}


def test_what_built_it_is_outside_its_constructors() -> None:
    where: list[Any] = []
    Derived(where)
    assert where == [sys._getframe()]
