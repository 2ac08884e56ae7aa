"""Spreads work over the lanes, places where sessions may run at the same time: one thread each.

    lane 1 │ piece ▒▒▒█ │ piece ▒▒▒█ │ piece …
    lane 2 │ piece ▒▒▒█ │ piece ▒▒✗                  its machine is lost: the piece goes back, and another lane takes it
    lane 3              │ piece ▒▒▒█ │ the lost one  a machine that joined later

Everything that is compared is one piece, so that no comparison ever crosses machines. An executor
without lanes (the local one) gets all pieces in order, in the caller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from autotune.executors.base import Executor, SessionFailed
from autotune.stages.context import RunContext

T = TypeVar("T")
MOST_LOST = 3  # machines that a piece may lose; after that the piece itself is to blame
LOOK_S = 0.5  # between two looks for new lanes

Serve = Callable[[RunContext, Iterator[T]], None]


def spread(
    context: RunContext,
    take: Callable[[], T | None],
    serve: Serve[T],
    give_up: Callable[[T, SessionFailed], None],
) -> None:
    """Do all pieces.

    Args:
        take: returns the next piece; None if there is none now. It is called again when a piece is
            done, since that may bring more.
        serve: called once per lane, with a context whose executor is that lane, and its pieces. May
            run in several threads at once.
        give_up: called with a piece whose machine was lost :data:`MOST_LOST` times.

    Raises:
        whatever any of them raises, once no lane is working any more.
    """
    lanes = context.executor.lanes()
    if lanes is None:
        serve(context, iter(take, None))
    else:
        _Spread(context, take, serve, give_up).run()


class _Spread(Generic[T]):
    def __init__(
        self,
        context: RunContext,
        take: Callable[[], T | None],
        serve: Serve[T],
        give_up: Callable[[T, SessionFailed], None],
    ) -> None:
        self._context, self._take, self._serve, self._give_up = context, take, serve, give_up
        self._changed = threading.Condition()
        self._lanes: dict[Executor, threading.Thread] = {}
        self._busy = 0  # pieces in progress
        self._back: list[T] = []  # pieces to do again, whose machine was lost
        self._lost: list[T] = []  # the same pieces, once per lost machine
        self._done = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Start a thread for every lane, present or joining later, until all pieces are done."""
        try:
            self._open_lanes()
        except BaseException as error:  # Ctrl-C pressed twice, or no machine is left
            self._fail(error)
            raise
        for thread in list(self._lanes.values()):
            while thread.is_alive():
                thread.join(LOOK_S)
        if self._error is not None:
            raise self._error

    def _open_lanes(self) -> None:
        while not (self._done or self._error):
            for lane in self._context.executor.lanes() or ():
                if lane not in self._lanes:
                    # A daemon: after Ctrl-C is pressed twice, no one waits for a measurement on
                    # another machine.
                    thread = self._lanes[lane] = threading.Thread(
                        target=self._in_lane, args=(lane,), name=f"lane {lane.node}", daemon=True
                    )
                    thread.start()
            with self._changed:
                if not (self._done or self._error):
                    self._changed.wait(LOOK_S)

    def next(self) -> T | None:
        """Return a piece for an idle lane; None: the lane may end."""
        with self._changed:
            while not (self._done or self._error):
                piece = self._back.pop(0) if self._back else self._take()
                if piece is not None:
                    self._busy += 1
                    return piece
                self._done = not self._busy
                if not self._done:
                    self._changed.wait(LOOK_S)
            self._changed.notify_all()
            return None

    def finished(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def _in_lane(self, lane: Executor) -> None:
        pieces: _Pieces[T] = _Pieces(self)
        try:
            self._serve(replace(self._context, executor=lane), pieces)
        except SessionFailed as failure:
            self._on_failure(lane, pieces.held, failure)
        except BaseException as error:  # raised again by run(), in the caller's thread
            self._fail(error)

    def _on_failure(self, lane: Executor, piece: T | None, failure: SessionFailed) -> None:
        if failure.kind != "lost":
            self._fail(failure)
            return
        try:
            with self._changed:
                self._lanes.pop(lane, None)
                if piece is not None and self._error is None:
                    self._give_back(piece, failure)
                    self._busy -= 1
                self._changed.notify_all()
        except BaseException as error:
            self._fail(error)

    def _give_back(self, piece: T, failure: SessionFailed) -> None:
        self._lost.append(piece)
        if sum(lost is piece for lost in self._lost) < MOST_LOST:
            self._context.note_lost(failure)
            self._back.append(piece)
        else:
            self._give_up(piece, failure)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


class _Pieces(Iterator[T]):
    """The pieces of one lane; asking for the next marks the last one as done."""

    def __init__(self, work: _Spread[T]) -> None:
        self._work = work
        self.held: T | None = None

    def __next__(self) -> T:
        if self.held is not None:
            self.held = None
            self._work.finished()
        self.held = self._work.next()
        if self.held is None:
            raise StopIteration
        return self.held
