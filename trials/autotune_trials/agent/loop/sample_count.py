"""How many samples the job has trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.loop.batch_accounting import Trained

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration


class SampleCount:
    """Of all iterations so far. Where no batch can be counted, an iteration is one."""

    def __init__(self) -> None:
        self.total = 0.0
        self.counted = False
        # the first iteration, until the second shows what was fetched ahead in it
        self._first: Any = None

    def start_over(self) -> None:
        """The next iteration is the first."""
        self.total = 0.0

    def add(self, iteration: Iteration, trained: Trained, given: float | None) -> None:
        """``iteration`` has ended; ``given``: what the job says itself."""
        iteration.wait_s, iteration.turnovers = trained.wait_s, trained.turnovers_s
        number, found = (
            (trained.samples, trained.counted) if given is None else (float(given), True)
        )
        if trained.first_fetched_ahead and given is None and self._first is not None:
            self._first.samples -= trained.first_fetched_ahead
            self.total -= trained.first_fetched_ahead
        self._first = iteration if not iteration.index else None
        self.counted = self.counted or found
        iteration.samples = number if self.counted else 1.0
        self.total += iteration.samples
