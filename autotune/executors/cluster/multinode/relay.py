"""Relays messages from the ranks on another node to the session here, and its answers back.

    rank 2 ── socket ── outpost ══ take() ══▶ relay ── socket of its own ──▶ session
                                ◀══ give() ══        ◀────────────────────

They go through Ray, so that no port is opened for them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.executors.cluster.answers import first_line
from autotune_trials.diagnosis.classify import Diagnosis
from autotune_trials.protocol.messages import JobError, dump
from autotune_trials.session.remote_session import Heard

TAKE_S = 1.0  # how long a question to the outpost waits; close() waits for a question to end


class Relay:
    """The relay of one outpost, for one session. A thread, and one more for each rank there.

    Args:
        take: :meth:`autotune_trials.session.remote_session.RemoteSession.take` of the outpost; any
            exception means that the outpost is lost.
        give: its ``give``; need not wait.
        address: of the session's socket.
    """

    def __init__(
        self,
        take: Callable[[float], Heard | None],
        give: Callable[[int, bytes], object],
        address: str,
    ) -> None:
        self.ended: Diagnosis | None = None  # how the command there ended
        self.lost = ""  # why it is not heard from any more
        self._take, self._give, self._address = take, give, address
        self._ranks: dict[int, socket.socket] = {}
        self._thread = threading.Thread(target=self._listen, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop relaying, once the outpost has ended its session or is lost."""
        self._thread.join(2 * TAKE_S)
        self._hang_up()

    def _listen(self) -> None:
        try:
            while (heard := self._take(TAKE_S)) is not None:
                for number, message in heard.messages:
                    self._tell(number, message)
                self.ended = heard.ended
        except Exception as error:
            self.lost = first_line(error)
        self._hang_up()

    def _tell(self, number: int, message: Any) -> None:
        if message is None:
            if number in self._ranks:
                _shut(self._ranks.pop(number))
            return
        if isinstance(message, JobError):  # its time was of another machine's clock
            message = replace(message, at_s=time.monotonic())
        if number not in self._ranks:
            self._ranks[number] = rank = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            rank.connect(self._address)
            threading.Thread(
                target=self._answer, args=(number, rank), name=f"relay {number}", daemon=True
            ).start()
        with contextlib.suppress(OSError):  # the session no longer listens to this rank
            self._ranks[number].sendall(dump(message))

    def _answer(self, number: int, rank: socket.socket) -> None:
        """Pass what the session says to the rank, as long as both are there."""
        with rank, contextlib.suppress(OSError):
            with rank.makefile("rb") as lines:
                for line in lines:
                    self._give(number, line)
            self._give(number, b"")

    def _hang_up(self) -> None:
        for rank in list(self._ranks.values()):
            _shut(rank)


def _shut(rank: socket.socket) -> None:
    with contextlib.suppress(OSError):
        rank.shutdown(socket.SHUT_RDWR)
