"""Under ``launch`` nothing is measured: an iteration leaves nothing behind, and the settings hold
as ever.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import autotune
from autotune_trials.agent.core.agent import Agent
from autotune_trials.protocol.messages import KnobChoice, SessionConfig


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Agent]:
    """The agent of ``autotune launch`` in this process, with autocast and a batch size held."""
    knobs = (KnobChoice("amp_dtype", "bfloat16"), KnobChoice("batch_size", 4))
    agent = Agent(torch, SessionConfig("launch", str(tmp_path), "", knobs=knobs))
    agent.install()
    yield agent
    agent.stop()


def train(steps: int) -> list[tuple[torch.dtype, int]]:
    """(dtype of the model's output, samples) of each step; an evaluation after every seventh."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=2, drop_last=True)
    other = DataLoader(TensorDataset(torch.ones(6, 8)), batch_size=2)
    seen = []
    for (x,) in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        out = model(x)
        seen.append((out.dtype, len(x)))
        out.float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if len(seen) % 7 == 0:
            with torch.no_grad():
                for (y,) in other:
                    model(y)
            autotune.metric("accuracy", torch.ones(()))
    return seen


def test_settings_hold_and_nothing_piles_up(launched: Agent) -> None:
    seen = train(60)
    assert not launched.state.stopped
    assert seen[1:] == [(torch.bfloat16, 4)] * 59  # the first shows which loader is trained on
    left = (
        launched.loss._current,
        launched.loss._steps,
        launched.consumption.batches,
        launched.metrics.told,
    )
    assert [len(kept) for kept in left] == [0, 0, 0, 0]


def test_what_holds_no_setting_is_taken_back_once_all_are_applied(tmp_path: Path) -> None:
    """A job pays for one that is: an optimizer built later is waited for, and then left alone as
    well.
    """
    optimizers = sys.modules["torch.optim.optimizer"]
    backward, hooks = torch.Tensor.backward, dict(optimizers._global_optimizer_pre_hooks)
    agent = Agent(
        torch,
        SessionConfig(
            "launch", str(tmp_path), "", knobs=(KnobChoice("optimizer_impl", "foreach"),)
        ),
    )
    agent.install()
    try:
        assert torch.Tensor.backward is not backward
        model = torch.nn.Linear(8, 8)

        def train_with(optimizer: torch.optim.Optimizer) -> None:
            for (x,) in DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=2):
                model(x).mean().backward()
                optimizer.step()
            assert optimizer.param_groups[0]["foreach"] is True

        for _ in range(2):
            train_with(torch.optim.SGD(model.parameters(), lr=0.01))
            assert torch.Tensor.backward is backward and "_compiled_call_impl" not in vars(model)
            assert optimizers._global_optimizer_pre_hooks == hooks
            assert type(iter(DataLoader(range(4)))).__module__.startswith("torch.")
    finally:
        agent.stop()
