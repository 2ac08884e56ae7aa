"""The watched iterations themselves: times by phase, and time spent waiting for a core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.dataloader.reader_meter import queued_s
from autotune_trials.agent.observers.observer import Observer
from autotune_trials.measure.clock import AWAY
from autotune_trials.protocol.messages import PHASES

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration


class IterationObserver(Observer):
    """Times from the phase clock. ``queued_s`` is the kernel's own count (schedstat) of how long
    the training thread was ready to run while other processes had all cores: nothing in the job
    causes that.
    """

    name = "iterations"

    def begin(self) -> None:
        self._iterations: list[Iteration] = []
        self._queued = [queued_s()]

    def end_iteration(self, iteration: Iteration) -> None:
        self._iterations.append(iteration)
        self._queued.append(queued_s())

    def finish(self) -> dict[str, Any]:
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
