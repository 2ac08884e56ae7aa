"""Batches served again and again while the ceiling is measured: a loader that costs nothing."""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.loop.batches import copy_batch, weight_of

BATCHES = 8
BYTES = 512 * 2**20  # fewer batches are kept if they are large


class KeptBatches:
    """At most ``BATCHES`` batches of one iterator, handed out in turn as copies."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, float]] = []
        self.served = 0

    def keep(self, batch: Any, samples: float) -> None:
        """Keep a copy of ``batch``, unless there are enough."""
        if not self.full():
            self._kept.append((copy_batch(batch), samples))

    def full(self) -> bool:
        return len(self._kept) >= BATCHES or sum(weight_of(b).bytes for b, _ in self._kept) >= BYTES

    def next(self) -> tuple[Any, float]:
        """A copy of the next batch, and its number of samples."""
        batch, samples = self._kept[self.served % len(self._kept)]
        self.served += 1
        return copy_batch(batch), samples

    def clear(self) -> None:
        self._kept, self.served = [], 0
