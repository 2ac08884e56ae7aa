"""Where the agent takes hold of the job. Each patch stands in a file of its own in patches/, and is taken back by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune_trials import api
from autotune_trials.agent.bootstrap import stack_dump
from autotune_trials.agent.patches import backward, compiling, graphs, optimizer, parallel, seeds, settings
from autotune_trials.measure.nvtx import nvtx_ranges
from autotune_trials.paths import SessionPaths

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


def install(agent: Agent) -> None:
    """Put all patches in place, and hold the knobs that can be held already."""
    torch, patches, config = agent.torch, agent.patches, agent.config
    if config.mode != "launch":
        stack_dump.install_stack_dump(SessionPaths(Path(config.directory)))
    if config.seed is not None:
        seeds.install(patches, torch, agent, config.seed)
    for patch in (backward, optimizer, compiling, graphs, settings, parallel):
        patch.install(patches, torch, agent)
    agent.modules.watch(True)
    _install_loader(agent)
    _install_hooks(agent)
    if config.nvtx and config.mode != "launch":
        agent.clock.ranges = nvtx_ranges(torch)
    agent.mode.start()
    agent.last_words.tell_restart()
    agent.knobs.hold(final=False)


def _install_loader(agent: Agent) -> None:
    from autotune_trials.agent.dataloader import hooks

    data = sys.modules["torch.utils.data.dataloader"]  # imported by torch itself since 1.x
    agent.loader_hooks = hooks.install(data, agent.batches, agent.config)
    agent.patches.on_restore(agent.loader_hooks.uninstall)


def _install_hooks(agent: Agent) -> None:
    api.receiver = agent
    agent.patches.on_restore(lambda: setattr(api, "receiver", None))
    previous = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        agent.errors.on_uncaught(error)
        previous(kind, error, trace)

    sys.excepthook = excepthook
    os.register_at_fork(after_in_child=agent.after_fork)
