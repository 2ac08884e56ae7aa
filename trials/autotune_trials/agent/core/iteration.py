"""One iteration as it was seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune_trials.measure.clock import AWAY
from autotune_trials.measure.usage import NOTHING, Counts, Usage, between


class Iteration:
    """Made where it ends, filled in by who measures (``Listener.iteration_ending``); what the modes
    take in."""

    index = 0
    wall: Sequence[float] = ()  # seconds a phase, as seen by the CPU
    spent: Sequence[float] = ()  # seconds a phase; on CUDA final only after clock.finish()
    samples = 0.0
    wait_s = 0.0
    turnovers: Sequence[float] = ()
    interrupted = False
    # or a tensor, which waits for the device: not to be asked while iterations are timed
    skipped: Any = False
    counted: tuple[Counts, Counts] = (NOTHING, NOTHING)

    @property
    def wall_s(self) -> float:
        """As seen by the CPU, without what was AWAY."""
        return sum(self.wall[:AWAY])

    @property
    def used(self) -> Usage:
        """Faults, CPU time and switches of the process, what was AWAY included."""
        return between(*self.counted)
