"""The watched iterations themselves: times by phase, and time spent waiting for a core."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.observers.observer import Observer
from autotune_trials.measure.clock import AWAY
from autotune_trials.protocol.messages import PHASES

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.observers.watch import Watch


class IterationObserver(Observer):
    """Times from the phase clock. ``queued_s`` is the kernel's own count (schedstat) of how long
    the training thread was ready to run while other processes had all cores: nothing in the job
    causes that.
    """

    name = "iterations"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._iterations: list[Any] = []
        self._file = -1
        self._queued: list[float] = []

    def begin(self) -> None:
        try:
            self._file = os.open(
                f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC
            )
            self._queued.append(self._read())
        except (OSError, ValueError, IndexError):
            self._queued = []

    def end_iteration(self, iteration: Iteration) -> None:
        self._iterations.append(iteration)
        if self._queued:
            self._queued.append(self._read())

    def finish(self) -> dict[str, Any]:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        # on a device the phases come from events that may still be pending
        self.agent.timer.finish()
        iterations, queued = self._iterations, self._queued
        return {
            "times_s": tuple(sum(i.spent[:AWAY]) for i in iterations),
            "phase_times_s": {
                name: tuple(i.spent[n] for i in iterations) for n, name in enumerate(PHASES)
            },
            "queued_s": tuple(b - a for a, b in zip(queued, queued[1:])),
        }

    def _read(self) -> float:
        return int(os.pread(self._file, 128, 0).split()[1]) / 1e9
