"""The record of one iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune_trials.measure.clock import AWAY
from autotune_trials.measure.usage import NOTHING, Counts, Usage, between


class Iteration:
    """Created when an iteration ends, filled in by the listeners
    (``Listener.iteration_ending``) and passed to the modes."""

    index = 0
    wall: Sequence[float] = ()  # seconds per phase, as seen by the CPU
    spent: Sequence[float] = ()  # seconds per phase; on CUDA final only after clock.finish()
    samples = 0.0
    wait_s = 0.0
    turnovers: Sequence[float] = ()
    interrupted = False
    # may be a tensor: testing it waits for the device, so not while iterations are timed
    skipped: Any = False
    counted: tuple[Counts, Counts] = (NOTHING, NOTHING)

    @property
    def wall_s(self) -> float:
        """Seconds as seen by the CPU, without time AWAY."""
        return sum(self.wall[:AWAY])

    @property
    def time_s(self) -> float:
        """Seconds for the window, without time AWAY; on CUDA final only after clock.finish()."""
        return sum(self.spent[:AWAY])

    @property
    def away_s(self) -> float:
        """Seconds that belong to no phase of training: evaluation, saving, epoch ends."""
        return sum(self.spent[AWAY:])

    @property
    def used(self) -> Usage:
        """Page faults, CPU time and context switches of the process, including time AWAY."""
        return between(*self.counted)
