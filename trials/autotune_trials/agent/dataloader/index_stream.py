"""Wraps the job's sampler so that indices can be put back.

Workers get indices ahead of time. When the source of a running iterator is replaced, the indices
handed out but not yet delivered go back to the head of the stream, so that the epoch neither loses
nor repeats samples:

    sampler ──▶ [put back] ──▶ batches of ``size`` ──▶ handed out ──▶ delivered
                    ▲                                      │
                    └────────────── put_back ◀─────────────┘

With torch's own BatchSampler the stream holds samples and can regroup them to another batch size.
With a batch sampler of the job's own, or ``batch_size=None``, it passes whole items on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from autotune_trials.agent.dataloader.batch_seeds import EpochSeeds, SeededIndices


class IndexStream:
    """What a DataLoader's iterator draws its indices from; replaces ``loader._index_sampler``."""

    def __init__(self, source: Any, *, rebatches: bool, size: int | None, iterable: bool) -> None:
        """``source``: the job's (batch) sampler; ``rebatches``: whether it is exactly torch's
        BatchSampler; ``size``: samples per batch, None if the source decides; ``iterable``: the
        dataset is an IterableDataset, whose indices carry no meaning.
        """
        self.source = source
        self.rebatches = rebatches
        self.size = size
        self.iterable = iterable
        self.last: Any = None  # the item pulled last
        self.tracks = False  # remember items handed out; only worker processes run ahead
        # of this epoch's batches, if their random numbers are matched
        self.seeds: EpochSeeds | None = None
        self.number = 0  # items drawn in this epoch and not put back
        self._starts = 0
        self._back: deque[Any] = deque()
        self._pulls: Iterator[Any] | None = None  # yields samples if rebatches, else items
        self._handed: dict[int, Any] = {}  # task number of the worker iterator -> item
        self._count = 0
        self._tail: list[Any] = []  # an incomplete last batch that drop_last withholds
        self._ended = False

    def begin(self, starts: int) -> None:
        """Start an epoch. ``starts``: how often the job's own iterator would call ``iter(sampler)``
        (torch's worker iterator does so twice); samplers that draw random numbers there must be
        called just as often.
        """
        self._starts = starts
        self._back.clear()
        self._pulls = None
        self._tail = []
        self._ended = False
        self.number = 0
        self.restart_count()

    def restart_count(self) -> None:
        """Restart the task count: the iterator above numbers its tasks from 0 again."""
        self._handed.clear()
        self._count = 0

    def __iter__(self) -> IndexStream:
        if self._starts > 0:
            self._starts -= 1
            # BatchSampler.__iter__ is a generator: nothing runs before its first item
            if not self.rebatches:
                self._pulls = iter(self.source)
        return self

    def __next__(self) -> Any:
        while self._starts > 0:
            iter(self)
        item = self._batch() if self.rebatches else self._item()
        self.last = item
        self.number += 1
        if not self.tracks:
            return item
        self._handed[self._count] = item
        self._count += 1
        return item if self.seeds is None else SeededIndices(self.seeds.of(self.number - 1), item)

    def _item(self) -> Any:
        if self._back:
            return self._back.popleft()
        if self._pulls is None:
            self._pulls = iter(self.source)
        return next(self._pulls)

    def _batch(self) -> list[Any]:
        if self._ended:
            raise StopIteration
        size, back = self.size or 1, self._back
        if self._pulls is None:
            self._pulls = iter(self.source.sampler)
        if back:
            batch = [back.popleft() for _ in range(min(size, len(back)))]
            batch.extend(islice(self._pulls, size - len(batch)))
        else:
            batch = [*islice(self._pulls, size)]
        if len(batch) == size or (batch and not self.source.drop_last):
            return batch
        self._ended, self._tail = True, batch
        raise StopIteration

    def undelivered(self, iterator: Any) -> list[Any]:
        """Items handed to the workers of ``iterator`` that have not come out of it, in stream
        order.
        """
        tasks = getattr(iterator, "_task_info", ())
        return [self._handed[number] for number in sorted(self._handed) if number in tasks]

    def undelivered_or_failed(self, iterator: Any, in_order: bool) -> list[Any]:
        """:meth:`undelivered`, plus the item of the batch for which ``iterator`` has just raised an
        error: a worker returns an error like a batch, after which its task counts as done.
        """
        if not self.tracks:
            return [] if self.last is None else [self.last]
        tasks, failed = iterator._task_info, iterator._rcvd_idx - 1
        return [
            self._handed[number]
            for number in sorted(self._handed)
            if number in tasks or number == failed or not in_order
        ]

    def handed(self) -> list[Any]:
        """All items handed out and not known to be delivered: those drawn by an iterator that
        failed to start.
        """
        return [self._handed[number] for number in sorted(self._handed)]

    def put_back(self, items: list[Any]) -> None:
        """Return ``items`` to the head of the stream, before the source of the iterator is
        replaced.
        """
        self.number -= len(items)
        if self.rebatches:
            items = [sample for batch in items for sample in batch] + self._tail
            self._tail, self._ended = [], False
        self._back.extendleft(reversed(items))
        self.restart_count()

    def delivered(self, iterator: Any, in_order: bool) -> Any:
        """The item of the batch that ``iterator`` has just returned; None if unknown."""
        if not self.tracks:
            return self.last
        if in_order:
            return self._handed.pop(iterator._rcvd_idx - 1, None)
        tasks, found = iterator._task_info, None
        for number in [n for n in self._handed if n not in tasks]:
            found = self._handed.pop(number)
        return found

    def __len__(self) -> int:
        if not self.rebatches or self.iterable:
            return len(self.source)
        return batches_in(len(self.source.sampler), self.size or 1, self.source.drop_last)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "source" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.source, name)


def batches_in(samples: int, size: int, drop_last: bool) -> int:
    """Number of batches in an epoch of ``samples``."""
    return samples // size if drop_last else -(-samples // size)
