"""Measures how the reader spends its time: fetching, using a CPU, and waiting for a CPU.

    _DatasetKind.create_fetcher ─▶ fetcher.fetch() is timed, in the training process or in a forked worker
                                       │ adds to its row
    training process ◀── totals ── memory that both share, a row each

A reader that waits (network storage) keeps no core busy, so many more workers than cores can help;
one that computes (decoding) gains nothing from more workers than cores. Time spent waiting *for a
CPU* is counted apart: on a busy machine a reader that computes would otherwise seem to wait.
Workers that are not forked cannot reach the shared memory, so nothing is known about them.

Costs about 15 µs a fetch; of fetches below a millisecond only every sixteenth is timed.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from autotune_trials.protocol.messages import SessionMode

ROWS = 257  # the training process and workers 0 to 255; others are not timed
QUICK_S = 1e-3  # a fetch below this …
SKIPPED = 15  # … is followed by this many that are not timed
_WIDTH = 5


class Spent(NamedTuple):
    """Totals over all fetches, of all processes that fetch."""

    cpu_s: float = 0.0
    queued_s: float = 0.0  # ready to run, but without a CPU
    wall_s: float = 0.0
    fetches: float = 0.0
    decoding_s: float = 0.0  # of JPEG images by PIL in workers, if requested

    def since(self, before: Spent) -> Spent:
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))


class ReaderMeters:
    """The meters of all loaders, one for each family."""

    def __init__(self, mode: SessionMode) -> None:
        self._wanted = mode in (SessionMode.LIVE, SessionMode.PROFILE)
        self._decoding = mode == SessionMode.PROFILE
        self._meters: dict[str, ReaderMeter] = {}  # by family key
        self.attaching: ReaderMeter | None = None  # for the fetcher of the source being built

    def of(self, key: str) -> ReaderMeter | None:
        """The meter for the fetches of the family ``key``; None if no one reads it, or there is no
        memory for it.
        """
        if not self._wanted:
            return None
        try:
            if key not in self._meters:
                self._meters[key] = ReaderMeter(decoding=self._decoding)
            return self._meters[key]
        except OSError:
            return None

    def spent(self, key: str) -> Spent:
        meter = self._meters.get(key)
        return meter.spent() if meter is not None else Spent()

    def close(self) -> None:
        self._wanted = False


class ReaderMeter:
    """Meter of one DataLoader; loaders rebuilt for every epoch share one."""

    def __init__(self, decoding: bool = False) -> None:
        """``decoding``: workers also time PIL's decoding."""
        self._decoding = decoding
        # anonymous and shared: it survives a fork
        self._cells = memoryview(mmap.mmap(-1, ROWS * _WIDTH * 8)).cast("d")

    def attach(self, fetcher: Any, worker_info: Any) -> None:
        """Time ``fetcher``, which this process has just made. ``worker_info``: torch's; None in the
        training process.
        """
        row = 0 if worker_info is None else 1 + int(worker_info.id)
        if row >= ROWS:
            return
        fetcher.fetch = self._timed(fetcher.fetch, row * _WIDTH)
        if self._decoding and worker_info is not None and "PIL" in sys.modules:
            self._time_decoding(row * _WIDTH + 4)

    def _timed(self, fetch: Callable[[Any], Any], at: int) -> Callable[[Any], Any]:
        cells, skip = self._cells, 0

        def timed_fetch(indices: Any) -> Any:
            nonlocal skip
            if skip:
                skip -= 1
                return fetch(indices)
            began, cpu_s, waited_s = perf_counter(), thread_time(), queued_s()
            batch = fetch(indices)
            wall_s = perf_counter() - began
            cells[at] += thread_time() - cpu_s
            cells[at + 1] += max(0.0, queued_s() - waited_s)
            cells[at + 2] += wall_s
            cells[at + 3] += 1
            skip = SKIPPED if wall_s < QUICK_S else 0
            return batch

        return timed_fetch

    def _time_decoding(self, at: int) -> None:
        """Patch PIL in this worker, which ends with its source. PIL decodes an image in ``load``,
        on first use.
        """
        from PIL.ImageFile import ImageFile

        kind: Any = ImageFile
        cells, load = self._cells, kind.load

        @functools.wraps(load)
        def timed_load(picture: Any) -> Any:
            began = perf_counter()
            try:
                return load(picture)
            finally:
                if picture.format == "JPEG":
                    cells[at] += perf_counter() - began

        kind.load = timed_load

    def spent(self) -> Spent:
        return Spent(*(sum(self._cells[column::_WIDTH]) for column in range(_WIDTH)))


def queued_s() -> float:
    """Seconds this thread was ready to run without a CPU (Linux; elsewhere 0). Opened each time: a
    job may fetch in ever new threads, and close files that are not its own.
    """
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            return int(os.read(file, 80).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):  # the kernel has no schedstat
        return 0.0
