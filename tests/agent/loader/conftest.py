"""A DataLoader hook for one test, removed at its end, without leftover workers."""

from __future__ import annotations

import gc

import pytest
from loader_kit import Heard, wait_for_no_workers


@pytest.fixture
def hook():
    """``hook(mode=..., loader_key=...)`` installs the hooks and returns (hooks, listener)."""
    import torch.utils.data.dataloader as data

    from autotune_trials.agent.core.events import Events
    from autotune_trials.agent.core.loop_state import LoopState
    from autotune_trials.agent.patches.loader import install
    from autotune_trials.protocol.messages import SessionConfig

    installed = []

    def start(mode: str = "live", loader_key: str = ""):
        heard, events = Heard(), Events()
        events.listen(heard)
        config = SessionConfig(mode=mode, directory=".", loader_key=loader_key)
        hooks = install(data, events, config, LoopState(), heard.on_fault, heard.on_fault)
        installed.append(hooks)
        return hooks, heard

    yield start
    for hooks in reversed(installed):
        hooks.uninstall()


@pytest.fixture
def no_workers_left():
    """Collect the test's garbage, but not older objects, for speed."""
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()
    assert wait_for_no_workers() == []
