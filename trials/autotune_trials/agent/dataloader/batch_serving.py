"""What a live session changes about the batches themselves: epochs that do not end, batches from
memory, and batches that are discarded.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from autotune_trials.agent.dataloader.overrides import LoaderOverrides
from autotune_trials.agent.dataloader.training_choice import TrainingLoaderChoice
from autotune_trials.agent.dataloader.training_source import TrainingSource

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.switchable_iterator import SwitchableIterator


class BatchServing:
    """What the iterators of the training loader have to do besides fetching the next batch."""

    def __init__(
        self, choice: TrainingLoaderChoice, overrides: LoaderOverrides, source: TrainingSource
    ) -> None:
        self._choice, self._overrides, self._source = choice, overrides, source
        self.stretch = False
        self.cached = False
        self.withheld = False  # a pass has ended without a step, so none was served from memory
        self.to_drain = 0  # batches to discard at the next request
        self._drain_until_s = 0.0
        self.last_rebuild_s = 0.0  # what the last switch made the job wait

    def set_stretch(self, on: bool) -> None:
        """Restart the training loader when it ends, so that the job's loop over it does not end.

        Only after a pass in which an iteration has ended: the job may step after its loop, with the
        gradient of all its data, or evaluate with gradients. Not if the job keeps every batch: it
        would run out of memory.
        """
        self.stretch = bool(on) and not self._choice.cycled

    def serve_cached(self, on: bool) -> None:
        """Give the training loop copies of at most 8 batches instead of new ones, as a loader that
        costs nothing would.
        """
        if self.cached != bool(on):
            self.cached, self.withheld = bool(on), False
            self._overrides.notify_iterators()

    def drain(self, limit_s: float) -> None:
        """Discard the batches the workers keep ready, for at most ``limit_s``, when the job asks
        for the next one; the end of the epoch stops it. The job sees later batches, and the
        discarded samples are not counted.
        """
        if self.stretch and not self.cached:
            self.to_drain = self._source.queue_depth()
            self._drain_until_s = perf_counter() + limit_s
            if self.to_drain:
                self._overrides.notify_iterators()

    def cancel_drain(self) -> None:
        self.to_drain = 0

    def drains(self, iterator: SwitchableIterator) -> bool:
        """Whether ``iterator`` should discard a batch."""
        return (
            self.to_drain > 0
            and iterator is self._choice.iterator()
            and perf_counter() < self._drain_until_s
        )

    def close(self) -> None:
        """End epochs as usual, and serve new batches."""
        self.stretch, self.cached = False, False
