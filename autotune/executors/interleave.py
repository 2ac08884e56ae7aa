"""Time-slices two live processes of the job, so that only one trains at a time.

    first    ▒▒ start, first slice ▒▒               ██      ████      ████      ██
    second                           ▒▒ start … ▒▒     ████      ████      ████

A machine whose speed drifts over seconds slows both alike, and the ratio of the two scatters half
as much as when one process follows the other (benchmarks/interleaved.md). The waiting process tree
is stopped as a whole, DataLoader workers included, so that nothing computes beside the running one
and no queue fills meanwhile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from autotune.executors.base import WALL_S, FixedRun
from autotune_trials.protocol.messages import Record
from autotune_trials.session.session import MOST_EXTENTS, Session

SLICES = "slices"  # in Record.notes: number of slices of the window; absent: it is of one piece
# in Record.notes: a file that one of the two processes wrote and the other read or removed
CROSSED = "crossed"
# iterations of the first slice, while their duration is unknown: past most warm-ups
FIRST_SLICE = 26
SLICE_S = 1.5  # length of a slice; the beginning of each would distort shorter ones
FEWEST_SLICES = 6  # of a window, however short it is
SHORTEST_SLICE = 4  # iterations


class Side:
    def __init__(self, session: Session, request: FixedRun) -> None:
        self.session = session
        self.metrics: Mapping[str, tuple[float, ...]] = {}  # printed by the job
        self._request = request
        self._record: Record | None = None  # the latest; the window may be extended after it
        self._steps = request.steps  # that the window should have
        self._done = self._slices = self._records = 0
        self._iteration_s = self._worked_s = 0.0

    def start(self) -> None:
        """Start the process and train to the end of its first slice.

        Raises:
            SessionFailed
        """
        with self.at_work():
            self.session.start()
            self.session.wait_hello()
            self._wait()
        self._halt()

    def train(self, steps: int) -> None:
        """Train one more slice of ``steps`` iterations.

        Raises:
            SessionFailed
        """
        with self.at_work():
            self.session.go_on(self._steps, self._done + steps)
            self._wait()
        self._halt()

    def _wait(self) -> None:
        """Wait for the end of the slice, or of the window."""
        pace = self.session.wait_slice()
        self._slices += 1
        if pace is not None:
            self._done, self._iteration_s = pace.iterations, pace.iteration_s
        else:
            self._record = record = self.session.wait_record()
            self._done = len(record.window.times_s)
            self._records += 1
            more = self._request.more
            if record.ended_early or self._records > MOST_EXTENTS or more is None:
                self._steps = self._done
            else:
                self._steps = max(self._done, more(record))

    def _halt(self) -> None:
        if self._record is None or not self._record.ended_early:
            self.session.halt()

    @property
    def left(self) -> int:
        """Iterations until the window is as long as it should be; 0: it is long enough."""
        if self._record is not None:
            return self._steps - self._done
        in_time = math.ceil(self._request.min_seconds / self._iteration_s)
        return max(self._steps, in_time, self._done + 1) - self._done

    @property
    def left_s(self) -> float:
        return self.left * self._iteration_s

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count the time spent inside as this run's, and not as the other's."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._worked_s += time.monotonic() - began

    def result(self, crossed: Sequence[str]) -> Record:
        """Its record. ``crossed``: files, see :data:`CROSSED`."""
        assert self._record is not None
        notes = {**self._record.notes, WALL_S: self._worked_s, SLICES: self._slices}
        if crossed:
            notes[CROSSED] = crossed[0]
        return replace(self._record, metrics={**self._record.metrics, **self.metrics}, notes=notes)


def interleave(first: Side, second: Side) -> None:
    """Train both started processes until their windows are as long as they should be.

    The order alternates; both need the same number of slices, however fast each is.

    Raises:
        SessionFailed
    """
    sides, fewest = (first, second), FEWEST_SLICES
    while any(side.left for side in sides):
        slices = max(fewest, math.ceil(max(side.left_s for side in sides) / SLICE_S))
        fewest = 1
        steps = {side: max(SHORTEST_SLICE, math.ceil(side.left / slices)) for side in sides}
        for _ in range(slices):
            for side in sides:
                if side.left:
                    side.train(steps[side])
            sides = (sides[1], sides[0])
