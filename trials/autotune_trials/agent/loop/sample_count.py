"""How many samples the job has trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune_trials.agent.loop.batch_accounting import Trained

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration


class SampleCount:
    """Counts the samples of all iterations. If no batch can be counted, an iteration is one."""

    def __init__(self) -> None:
        self.total = 0.0
        self.counted = False
        # the first iteration, until the second shows how much of it was fetched ahead
        self._first: Iteration | None = None

    def start_over(self) -> None:
        """The next iteration is the first."""
        self.total = 0.0

    def add(self, iteration: Iteration, trained: Trained, given: float | None) -> None:
        """``iteration`` has ended; ``given``: its sample count, if the job reports one."""
        iteration.wait_s, iteration.turnovers = trained.wait_s, trained.turnovers_s
        samples, counted = trained.samples, trained.counted
        if given is not None:
            samples, counted = float(given), True
        elif self._first is not None:
            self._first.samples -= trained.first_fetched_ahead
            self.total -= trained.first_fetched_ahead
        self._first = None if iteration.index else iteration
        self.counted = self.counted or counted
        iteration.samples = samples if self.counted else 1.0
        self.total += iteration.samples
