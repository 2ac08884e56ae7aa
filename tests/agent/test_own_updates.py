"""Iterations of jobs that step no optimizer of torch.optim, recognized by changes of their
parameters.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.loop.own_updates import PATIENCE, STEPLESS, SURE, OwnUpdates


class Watched:
    """OwnUpdates over a model, notified of each step as by the training loop."""

    def __init__(self, optimizers: list[Any] | None = None) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        )
        self.forgotten, self.updates, self.gave_up = False, 0, ""
        live: Any = SimpleNamespace(
            torch=torch,
            every_optimizer=lambda: optimizers or [],
            state=SimpleNamespace(functional=False, backwards=0),
            events=SimpleNamespace(forget=self._forget),
        )
        self.state = live.state
        self.seen = OwnUpdates(live, self._update, self._give_up)

    def _forget(self, listener: OwnUpdates) -> None:
        self.forgotten = True

    def _update(self) -> None:
        self.updates += 1

    def _give_up(self, why: str) -> None:
        self.gave_up = why

    def backward(self, inputs: torch.Tensor | None = None) -> None:
        inputs = torch.randn(3, 4) if inputs is None else inputs
        self.seen.went_on()
        loss = self.net(inputs).square().mean()
        self.seen.backward_started(loss, None)
        loss.backward()
        self.state.backwards += 1
        self.seen.backward_ended()

    def update(self, through_data: bool = False) -> None:
        with torch.no_grad():
            for p in self.net.parameters():
                (p.data if through_data else p).add_(p.grad, alpha=-0.1)
                p.grad = None


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_an_iteration_ends_where_the_job_goes_on_after_an_update(
    parts: int, through_data: bool
) -> None:
    watched = Watched()
    for done in range(SURE + 4):
        for _ in range(parts):
            watched.backward()
            assert watched.updates == done
        watched.update(through_data)
        assert watched.updates == done, "only when it goes on"
        watched.seen.went_on()
    assert watched.updates == SURE + 4 and not watched.gave_up


def test_a_perturbed_input_is_no_update() -> None:
    watched, inputs = Watched(), torch.randn(3, 4, requires_grad=True)
    for _ in range(10):
        watched.backward(inputs)
        with torch.no_grad():
            inputs += 0.01 * inputs.grad.sign()
    assert watched.updates == 0


def test_an_optimizer_that_has_not_stepped_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much longer after many backwards, the session decides. 512 may be one iteration."""
    monkeypatch.setattr(log, "_left", set())
    monkeypatch.setattr(log, "directory", lambda: str(tmp_path))
    watched = Watched(optimizers=[object()])
    assert STEPLESS > 512
    for done in range(STEPLESS + 10):
        assert list(tmp_path.glob("markers/backwards-*")) == [] or done >= STEPLESS
        watched.backward()
    assert len(list(tmp_path.glob("markers/backwards-*"))) == 1
    assert watched.updates == 0 and not watched.gave_up


def test_beside_an_optimizer_the_first_updates_may_be_something_else() -> None:
    """For example, a batch-size search resets the weights between backwards."""
    watched = Watched(optimizers=[object()])
    for done in range(SURE + 4):
        watched.backward()
        watched.update()
        watched.seen.went_on()
        assert watched.updates == max(0, done + 2 - SURE)
    assert not watched.gave_up


def test_without_any_update_it_gives_up_and_says_what_to_do() -> None:
    watched = Watched()
    for _ in range(PATIENCE):
        assert not watched.gave_up
        watched.backward()
    assert watched.forgotten and "autotune.step(" in watched.gave_up


def test_an_optimizers_step_ends_the_search() -> None:
    watched = Watched()
    watched.backward()
    weight = weakref.ref(watched.net[0].weight)
    watched.seen.step_started(object())
    assert watched.forgotten
    del watched.net
    gc.collect()
    assert weight() is None
