"""A new switch in the running job is one class, listed once; listeners cost nothing while idle."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune_trials.agent import controls
from autotune_trials.agent.controls import live_job
from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.controls.switches import SWITCHES
from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.core.events import EVENTS, Events, Listener
from autotune_trials.agent.patches.patch_set import Patch, PatchSet
from autotune_trials.protocol.messages import SessionConfig


class Counting(Control):
    """Counts the job's steps while it is on."""

    name, own = "counting", False
    steps = 0

    def set(self, value: Any) -> None:
        self.listen(value)

    def step_started(self, optimizer: Any) -> None:
        self.steps += 1


def test_a_switch_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_job, "SWITCHES", (*SWITCHES, Counting))
    # type: ignore[arg-type]
    agent = Agent(torch, SessionConfig("live", str(tmp_path), warmup_steps=10**9))
    agent.install()
    try:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train(steps: int) -> int:
            for _ in range(steps):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            return agent.live.get(Counting).steps

        assert train(3) == 0
        agent.live.control("counting").set(True)
        agent.live.control("counting").set(True)
        assert train(3) == 3
        agent.live.control("counting").set(False)
        assert train(2) == 3
        agent.live.control("counting").set(True)
    finally:
        agent.stop()
    optimizer.step()
    assert agent.live.get(Counting).steps == 3


def test_every_control_is_listed() -> None:
    written = {
        node.name
        for path in Path(controls.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base) == "Control" for base in node.bases)
    }
    assert written == {kind.__name__ for kind in SWITCHES}


class Ear(Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def backward_ended(self) -> None:
        self.heard.append("backward")

    def started_over(self) -> None:
        self.heard.append("over")


def test_listeners_are_called_for_what_they_override_until_they_are_forgotten() -> None:
    events, first, second = Events(), Ear(), Ear()
    events.listen(first, second)
    events.listen(first)
    assert [name for name in EVENTS if getattr(events, name)] == ["backward_ended", "started_over"]
    assert events.backward_ended == (first.backward_ended, second.backward_ended)
    events.forget(first, "backward_ended")
    assert events.backward_ended == (second.backward_ended,) and len(events.started_over) == 2
    events.recall(first, "backward_ended")
    assert len(events.backward_ended) == 2
    third = Ear()
    events.listen(third, ahead=True)
    assert events.backward_ended[0] == third.backward_ended and len(events.backward_ended) == 3
    events.forget(third)
    events.forget(second)
    assert events.started_over == (first.started_over,)
    events.close()
    assert not any(getattr(events, name) for name in EVENTS)


def test_an_optimizer_with_the_id_of_one_that_is_gone_is_new(tmp_path: Path) -> None:
    live = Agent(torch, SessionConfig("launch", str(tmp_path))).live
    parameter = torch.nn.Parameter(torch.ones(1))
    gone, new = (torch.optim.SGD([parameter]) for _ in range(2))
    live.optimizer_built(gone, sys._getframe(), False)
    assert live.note_stepping(gone)
    live._optimizers[id(new)] = live._optimizers.pop(id(gone))  # as if it had got the same address
    live._stepping = [id(new)]
    live.optimizer_built(new, sys._getframe(), False)
    assert not live.all_have_stepped
    assert live.note_stepping(new) and not live.note_stepping(new)


def test_the_agents_failure_is_not_the_jobs_where_it_compiles_or_scales(tmp_path: Path) -> None:
    for name in ("listen_to_dynamo", "_scaled"):
        agent = Agent(torch, SessionConfig("live", str(tmp_path), warmup_steps=10**9))
        agent.install()
        try:
            if name == "_scaled":
                agent.losses._torch = None
                scaler, loss = torch.amp.GradScaler("cpu"), torch.ones((), requires_grad=True)
                assert scaler.scale(loss) == scaler.get_scale()
            else:
                agent.modules.listen_to_dynamo = lambda: 1 / 0  # type: ignore[assignment]
                assert torch.compile(torch.nn.Linear(2, 2), backend="eager") is not None
            assert agent.state.stopped
        finally:
            agent.stop()


class Patched:
    def value(self) -> list[str]:
        return ["own"]


def test_a_patch_made_while_ours_is_away_stays() -> None:
    def make(patch: Patch, original: Any) -> Any:
        return lambda self: [*original(self), "ours"] if patch.active else original(self)

    patches = PatchSet()
    patches.add("value", Patched, "value", make)
    with patches.suspended("value"):
        own = Patched.value
        Patched.value = lambda self: [*own(self), "theirs"]  # type: ignore[method-assign]
    assert Patched().value() == ["own", "theirs", "ours"]
    patches.restore_all()
    assert Patched().value() == ["own", "theirs"]
