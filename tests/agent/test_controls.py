"""A new switch in the running job is one class, listed once; what hears of no event costs
nothing."""

from __future__ import annotations

import ast
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
    events.forget(second)
    assert events.started_over == (first.started_over,)
    events.close()
    assert not any(getattr(events, name) for name in EVENTS)
