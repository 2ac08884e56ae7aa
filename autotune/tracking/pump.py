"""Decides when to send: at once while all is well, later and less often after failures.

    healthy ── a send fails ──▶ failing: retried after 5, 10, 20 … 300 s, from a thread, until a send works
       ▲                           │
       └───────── a send works ────┘

Callers never wait for a failing store. A healthy local store is sent to in the caller's thread,
between two measurements; a thread of its own would take its 40 ms out of the middle of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

DRAIN_S = 30.0  # longest wait at the end of a study, for a server that is slow but answers
# a restarted server is back within a minute: tried at 5, 15, 35, 75 s
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
OTHER_SENDER_S = 1.0  # while `autotune sync` is sending the same spool


class Busy(Exception):
    """Another process is sending this spool at the moment."""


class Sends(Protocol):
    def send(self, *, wait: bool = False) -> int: ...


class Pump:
    """Calls ``send`` when there is something to send.

    Args:
        background: never send in the caller's thread.
        failed: called with every failure; ``recovered``: called on the first success after one.
            Both may be called from a thread.
    """

    def __init__(
        self,
        sender: Sends,
        *,
        background: bool,
        failed: Callable[[Exception], None],
        recovered: Callable[[], None] = lambda: None,
    ) -> None:
        self._sender, self._background = sender, background
        self._failed, self._recovered = failed, recovered
        self._changed = threading.Condition()
        self._wanted = self._busy = self._hurry = self._closed = False
        self._failures = 0  # in a row
        self._not_before_s = 0.0  # on the monotonic clock
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """Announce that there is something to send."""
        with self._changed:
            here = not (self._background or self._wanted or self._busy or self._closed)
            self._wanted = True
            if here:
                self._begin()
        if here:
            self._send(wait=False)
        with self._changed:
            if self._wanted and not self._closed:
                self._wake()

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Try to send everything now, even in the pause after a failure; returns whether it did."""
        with self._changed:
            self._wanted = self._hurry = True
            self._wake()
            self._changed.wait_for(lambda: not (self._busy or self._hurry), timeout_s)
            return not (self._wanted or self._busy)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="autotune-tracking")
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or self._due()):
                    pausing = self._wanted and not self._busy
                    self._changed.wait(
                        max(0.0, self._not_before_s - time.monotonic()) if pausing else None
                    )
                if self._closed:
                    return
                hurry = self._begin()
            self._send(wait=hurry)

    def _due(self) -> bool:
        return (
            self._wanted
            and not self._busy
            and (self._hurry or time.monotonic() >= self._not_before_s)
        )

    def _begin(self) -> bool:
        """Take on the pending work (lock held); returns whether :meth:`drain` waits for it."""
        hurry, self._wanted, self._busy, self._hurry = self._hurry, False, True, False
        return hurry

    def _send(self, *, wait: bool) -> None:
        pause_s = 0.0
        try:
            self._sender.send(wait=wait)
        except Busy:
            pause_s = OTHER_SENDER_S
        # whatever MLflow and its drivers raise: a study never fails because of its record
        except Exception as error:
            pause_s = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            self._failures += 1
            self._failed(error)
        else:
            if self._failures:
                self._failures = 0
                self._recovered()
        finally:  # also on Ctrl-C: the next send must not wait for this one
            with self._changed:
                self._busy = False
                if pause_s:
                    self._wanted, self._not_before_s = True, time.monotonic() + pause_s
                self._changed.notify_all()
