"""The profiled iterations of a profile run, and their trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune_trials.agent.facts.ranks import rank
from autotune_trials.measure.capture import CaptureWindow
from autotune_trials.measure.nvtx import ModuleRanges, ProfilerRanges, Several
from autotune_trials.measure.profiler import ProfileWindow
from autotune_trials.paths import SessionPaths

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


class Profiling:
    """``profile_steps`` iterations under torch.profiler, or under an external tool (Nsight)."""

    def __init__(self, agent: Agent) -> None:
        self._agent, config = agent, agent.config
        self.note = ""  # why modules are not drawn; "" if they are, or were not requested
        self._iterations = 0
        self._module_ranges: list[ModuleRanges] = []
        path = SessionPaths(Path(config.directory)).trace(rank(agent.torch))
        self._profiler = (
            CaptureWindow(agent.torch, agent.live.cuda)
            if config.capture
            else ProfileWindow(agent.torch, str(path), config.stacks, agent.live.cuda)
        )

    def start(self) -> None:
        """The first of the iterations begins."""
        agent = self._agent
        self._profiler.start()
        if not agent.config.capture:
            agent.timer.draw(Several(agent.timer.ranges, ProfilerRanges(agent.torch)))
        self._draw_modules()

    def step(self) -> bool:
        """An iteration has ended; True if it was the last."""
        self._profiler.step()
        self._iterations += 1
        return self._iterations >= self._agent.config.profile_steps

    def stop(self) -> str:
        """Write the trace and return its path."""
        self.close_ranges()
        return str(self._profiler.stop())

    def close_ranges(self) -> None:
        """Remove the ranges that were drawn for the profile."""
        for drawn in self._module_ranges:
            drawn.remove()
        self._module_ranges = []
        self._agent.timer.close_ranges()

    def _draw_modules(self) -> None:
        """Draw ranges for the submodules of what the job calls, during the profiled window."""
        agent, depth = self._agent, self._agent.config.nvtx_modules
        ranges = self._agent.timer.ranges
        if not depth or ranges is None:
            return
        if agent.traits.compiles or any(entry.compiled for entry in agent.live.entries):
            self.note = "the model is compiled, so its modules cannot be shown in the trace"
            return
        roots = [entry.module for entry in agent.live.entries if entry.alive]
        self._module_ranges = [ModuleRanges(ranges, root, depth) for root in roots]
        if not any(drawn.names for drawn in self._module_ranges):
            self.note = "no module with submodules was called in training"
