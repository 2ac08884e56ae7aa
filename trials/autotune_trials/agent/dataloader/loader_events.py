"""The events that the DataLoader hooks report.

    on_epoch_start(loader)                                  the job begins a pass over it
    on_batch_start(loader)                                  before waiting
    on_batch(loader, batch, samples, wait_s, turnover_s)    ``turnover_s`` only for the first batch of a later epoch:
                                                            all the time lost at the epoch boundary;
                                                            ``wait_s`` is then 0
    on_epoch_end(loader)                                    also when a stretched epoch starts again
    on_workers_ending, on_workers_ended(loader)             of an iterator that the job dropped before its end
    on_loader(loader, frame)                                a loader was built, called from ``frame``
    on_fault(where, text)                                   an error that has already been handled

where ``loader`` is a ``TrackedLoader`` (``key``, ``training``).
"""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.tracked import TrackedLoader


class LoaderEvents:
    """Receives the events in the module's docstring; this base class ignores them."""

    def on_loader(self, built: Any, frame: FrameType) -> None: ...

    def on_batch_start(self, loader: TrackedLoader) -> None: ...

    def on_batch(
        self,
        loader: TrackedLoader,
        batch: Any,
        samples: float,
        wait_s: float,
        turnover_s: float | None,
    ) -> None: ...

    def on_epoch_start(self, loader: TrackedLoader) -> None: ...

    def on_epoch_end(self, loader: TrackedLoader) -> None: ...

    def on_workers_ending(self, loader: TrackedLoader) -> None: ...

    def on_workers_ended(self, loader: TrackedLoader) -> None: ...

    def on_fault(self, where: str, text: str) -> None: ...
