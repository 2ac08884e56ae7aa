"""A thread of the job's own that calls the model without gradients, beside the one that trains: an
actor, an evaluator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_tuner import Tuner
from torch import nn

from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.core.events import Events
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.core.training_loop import TrainingLoop
from autotune_trials.protocol.messages import SessionConfig

JOB = """
import threading, time
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
other = nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
begun = threading.Event()
def evaluator():
    begun.wait()
    while True:
        time.sleep(0.03)
        for _ in range(12):
            with torch.no_grad():
                model(torch.ones(1, 64))
                other(torch.ones(1, 64))
            time.sleep(0.002)
threading.Thread(target=evaluator, daemon=True).start()
while True:
    time.sleep(0.004)
    optimizer.zero_grad()
    model(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    begun.set()
"""


def test_its_calls_take_no_time_off_the_iterations(tuner: Tuner) -> None:
    tuner.start(JOB, mode="fixed", steps=60)
    tuner.receive()
    window = tuner.receive().window
    assert window.away_s == 0 and window.interruptions == 0
    assert min(window.times_s[1:]) > 0.004
    assert not tuner.log


def elsewhere(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_its_calls_are_not_taken_for_a_step_of_the_training(tmp_path: Path) -> None:
    agent = Agent(torch, SessionConfig("launch", str(tmp_path), ""))
    agent.install()
    try:
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        entry = agent.live.add_entry(model)
        assert entry is not None

        def evaluate() -> None:
            with torch.no_grad():
                model(torch.ones(1, 8))

        def take_gradients() -> None:
            x = torch.ones(1, 8, requires_grad=True)
            torch.autograd.grad(model(x).sum(), x)

        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        elsewhere(evaluate)
        assert not entry.called_gradless
        evaluate()
        assert entry.called_gradless
        for parameter in model.parameters():
            parameter.requires_grad = False
        elsewhere(take_gradients)
        assert not agent.state.frozen
        take_gradients()
        assert agent.state.frozen
    finally:
        agent.stop()


def test_backward_may_run_on_a_thread_of_its_own() -> None:
    """As on CUDA, where it may call modules, and step an optimizer from its hooks."""
    state = LoopState()
    loop = TrainingLoop(Events(), state, pytest.fail, pytest.fail)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.ones(1)])
    loop.start_backward(None, None)
    elsewhere(lambda: loop.end_step(optimizer, (optimizer,), {}))
    loop.end_backward()
    assert state.iterations == 1 and not state.aside

    seen = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(state.aside))
    elsewhere(y.backward)
    elsewhere(lambda: seen.append(state.aside))
    assert seen == [False, True]
