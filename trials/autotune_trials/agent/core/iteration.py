"""One iteration as it was seen."""

from __future__ import annotations

from typing import Any

from autotune_trials.measure.usage import NOTHING


class Iteration:
    """Made where it ends; what the modes take in."""

    __slots__ = ("index", "wall_s", "spent", "samples", "wait_s", "turnovers", "interrupted", "skipped", "used")

    def __init__(self, index: int, wall_s: float, spent: list[float]) -> None:
        self.index = index
        self.wall_s = wall_s  # as seen by the CPU, without what was AWAY
        self.spent = spent  # seconds a phase; on CUDA final only after clock.finish()
        self.samples = 0.0
        self.wait_s = 0.0
        self.turnovers: list[float] = []
        self.interrupted = False
        self.skipped: Any = False  # or a tensor, which waits for the device: not to be asked while iterations are timed
        self.used = NOTHING  # faults, CPU time and switches of the process, what was AWAY included
