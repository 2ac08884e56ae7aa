"""Who is told of batches by the DataLoader hooks.

    on_epoch_start(loader)                                  the job begins a pass over it
    on_batch_start(loader)                                  before waiting
    on_batch(loader, batch, samples, wait_s, turnover_s)    ``turnover_s`` only for the first batch of a later epoch:
                                                            all the time lost at the turn;
                                                            ``wait_s`` is then 0
    on_epoch_end(loader)                                    also where a stretched epoch begins again
    on_workers_ending, on_workers_ended(loader)             of an iterator that the job dropped before its end
    on_loader(loader, frame)                                one was built, called from ``frame``
    on_fault(where, text)                                   trouble, which is put right already

where ``loader`` is a ``TrackedLoader`` (``key``, ``training``).
"""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.tracked import TrackedLoader


class LoaderEvents:
    """Who is told of batches: see the module's docstring. As it is, it does not listen."""

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
