"""Installs the agent's hooks in the job. Each patch has its own file in patches/ and is undone by
name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune_trials import api
from autotune_trials.agent.bootstrap import stack_dump
from autotune_trials.agent.patches import (
    backward,
    ddp,
    job_compile,
    job_cuda_graphs,
    job_settings,
    loader,
    optimizer,
    process,
    safetensors,
    scripting,
    seeds,
    tracing,
)
from autotune_trials.measure.nvtx import nvtx_ranges
from autotune_trials.paths import SessionPaths

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.dataloader.hooks import LoaderHooks


def install(agent: Agent) -> None:
    """Install all patches, and hold the knobs that can be held already."""
    torch, patches, config = agent.torch, agent.patches, agent.config
    traits, loop = agent.traits, agent.loop
    if agent.mode.measures:
        ddp.install_join(patches, torch, agent.step_aside)
        stack_dump.install_stack_dump(SessionPaths(Path(config.directory)))
        job_cuda_graphs.install(patches, torch, loop)
        job_settings.install(patches, torch, agent.knobs, traits, agent.sites)
    held = {knob.name for knob in config.knobs}
    if agent.mode.measures or "amp_dtype" in held:
        backward.install_grad(patches, torch, loop, traits)
    if agent.mode.measures or "channels_last" in held:
        safetensors.install(patches)
    if config.seed is not None:
        seeds.install(patches, torch, config.seed)
    backward.install(patches, torch, loop, traits)
    optimizer.install(patches, torch, loop)
    job_compile.install(
        patches,
        torch,
        loop,
        agent.modules,
        traits,
        agent.losses.on_scaled if agent.mode.measures else None,
    )
    tracing.install(patches)
    ddp.install(patches, torch, agent.live)
    scripting.install(patches, torch)
    agent.modules.discover(True)
    api.receiver = loop
    patches.on_restore(lambda: setattr(api, "receiver", None))
    process.install(patches, agent.errors.on_uncaught, agent.after_fork)
    if agent.mode.measures:
        agent.timer.draw(nvtx_ranges(torch))
    agent.mode.start()
    agent.errors.report_restart()
    agent.knobs.hold(final=False)


def install_loader(agent: Agent) -> LoaderHooks:
    """Hook the DataLoader."""
    data = sys.modules["torch.utils.data.dataloader"]  # torch itself imports it
    found = loader.install(
        data,
        agent.events,
        agent.config,
        agent.state,
        agent.loop.on_loader_fault,
        agent.loop.on_loader_refusal,
    )
    agent.live.loaders = agent.meter.loaders = found
    agent.patches.on_restore(found.uninstall)
    return found
