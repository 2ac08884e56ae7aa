"""One iteration as it was seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune_trials.measure.usage import NOTHING, Counts, Usage, between


class Iteration:
    """Made where it ends, filled in by who measures (``Listener.iteration_ending``); what the modes
    take in."""

    __slots__ = "index wall_s spent samples wait_s turnovers interrupted skipped counted".split()

    def __init__(self, index: int) -> None:
        self.index = index
        self.wall_s = 0.0  # as seen by the CPU, without what was AWAY
        self.spent: list[float] = []  # seconds a phase; on CUDA final only after clock.finish()
        self.samples = 0.0
        self.wait_s = 0.0
        self.turnovers: Sequence[float] = ()
        self.interrupted = False
        # or a tensor, which waits for the device: not to be asked while iterations are timed
        self.skipped: Any = False
        self.counted: tuple[Counts, Counts] = (NOTHING, NOTHING)

    @property
    def used(self) -> Usage:
        """Faults, CPU time and switches of the process, what was AWAY included."""
        return between(*self.counted)
