"""Trouble of ours that nobody can be told of is in agent.log, and never reaches the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch.utils.data.dataloader as data
from torch.utils.data import DataLoader

from autotune_trials.agent.core.events import Events
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.dataloader import batch_seeds
from autotune_trials.agent.dataloader.hooks import LoaderHooks
from autotune_trials.agent.dataloader.switchable_iterator import SwitchableIterator
from autotune_trials.agent.patches.loader import install
from autotune_trials.protocol.messages import SessionConfig


def fails(*_: object) -> None:
    raise RuntimeError("planted")


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    monkeypatch.setenv("AUTOTUNE_SESSION", str(tmp_path / "session.json"))
    log = tmp_path / "agent.log"
    return lambda: log.read_text() if log.exists() else ""


@pytest.fixture
def hooks(tmp_path: Path) -> LoaderHooks:
    config = SessionConfig("live", str(tmp_path))
    return LoaderHooks(data, Events(), config, LoopState(), fails, fails)


def test_seeds_of_a_batch(monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]) -> None:
    monkeypatch.setattr(batch_seeds, "seed_streams", fails)
    assert batch_seeds.seeded(1, [2, 3]) == [2, 3]
    assert "seeds of a batch" in said() and "planted" in said()


def test_reports_that_fail(hooks: LoaderHooks, said: Callable[[], str]) -> None:
    try:
        raise ValueError("of ours")
    except ValueError:
        hooks.reports.fault("somewhere")
    hooks.reports.refusal("num_workers=2", "why")
    assert "somewhere, reporting" in said() and "reporting a refusal" in said()


def test_an_iterator_that_is_dropped(said: Callable[[], str]) -> None:
    iterator = SwitchableIterator.__new__(SwitchableIterator)  # has no state
    iterator.__del__(lambda: True)
    assert said() == "", "not at the interpreter's end"
    iterator.__del__()
    assert "dropped iterator" in said()


def test_trouble_with_an_iterator_or_a_fetcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    faults: list[tuple[str, str]] = []
    config = SessionConfig("live", str(tmp_path))
    hooks = install(data, Events(), config, LoopState(), lambda *fault: faults.append(fault), fails)
    try:
        monkeypatch.setattr(hooks, "tracked", fails)
        monkeypatch.setattr(hooks.meters, "attaching", object())  # has no methods
        assert [int(batch) for batch in DataLoader(range(3), batch_size=1)] == [0, 1, 2]
    finally:
        hooks.uninstall()
    ((where, text),) = faults
    assert where == "DataLoader._get_iterator" and "planted" in text
    assert "create_fetcher" in said()
