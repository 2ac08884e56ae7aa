"""Polls the cluster's head for its nodes, and notices its loss before Ray ends this process.

    head     answer   answer   answer ✗
    run      ▒▒▒█ ▒▒▒█ ▒▒▒█ ▒▒▒█ ▒▒▒█ ▒▒▒█ ▒▒▒│ ClusterLost │ end the slots, exit
    Ray                               └─────── 60 s ──────────────────────────────────────┴▶ ends every process of the cluster, this one too

A question to a lost head is neither answered nor fails, so it is asked in a separate thread.
Traffic between this process and the slots needs no head, and a head that returns in time (Ray's
fault tolerance) is not missed at all.

Source: src/ray/gcs_rpc_client/rpc_client.h, ``server_unavailable_timeout_callback``: ``_Exit``,
which leaves no chance to say what happened.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from autotune.errors import ClusterLost
from autotune.executors.cluster.answers import first_line

ASK_S = 2.0  # between two questions, if no caller wants to know sooner
FRESH_S = 1.0  # a caller waits this long for a new answer
# Ray's own setting, of which ours is a share
RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
RAYS_PATIENCE_S = 60.0
# the rest is for shutting down: slots, tracking, and leaving Ray, which takes up to 25 s without a
# head
SHARE = 1 / 3
CLOSED = "closed channel"  # gRPC's message while Ray's client looks for its server
LAST_CHANCE_S = 2.0  # for an answer, in case this whole process was suspended

Nodes = Sequence[Mapping[str, Any]]


class Head:
    """Polls the head from its creation on.

    Args:
        ask: :func:`ray.nodes`.
        patience_s: without an answer, until it counts as lost; None: a share of Ray's.
    """

    def __init__(self, ask: Callable[[], Nodes], patience_s: float | None = None) -> None:
        self._question = ask
        self._patience_s = rays_patience_s() * SHARE if patience_s is None else patience_s
        self._news = threading.Condition()
        self._nodes: Nodes | None = None
        # _asked_s: of the question that was answered last
        self._heard_s = self._asked_s = time.monotonic()
        self._lost = False
        self._trouble = ""  # why the last question failed
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._ask, name="head", daemon=True)
        self._thread.start()

    def nodes(self) -> Nodes:
        """The head's current answer; if there is none, its last one.

        Raises:
            ClusterLost
        """
        now = time.monotonic()
        self._wanted.set()
        with self._news:
            self._news.wait_for(lambda: self._asked_s > now, FRESH_S)
            while self._nodes is None:
                self._news.wait(0.2)
                self.check()
            return self._nodes

    @property
    def gone(self) -> bool:
        """Whether nothing was heard from the head for too long, or the connection is cut.

        It does not change after :meth:`close`.
        """
        return self._lost or (not self._closing.is_set() and self._silent())

    def check(self) -> None:
        """Raise if the head is gone.

        Raises:
            ClusterLost
        """
        if self._silent():
            with self._news:
                if not self._news.wait_for(lambda: not self._silent(), LAST_CHANCE_S):
                    why = f"no answer for {time.monotonic() - self._heard_s:.0f} s"
                    raise self._missed(f"{why}: {self._trouble}" if self._trouble else why)

    @contextmanager
    def client_errors_as_lost(self) -> Iterator[None]:
        """Turn what Ray's client raises without its server (which is on the head) into ClusterLost.

        Raises:
            ClusterLost
        """
        from ray.exceptions import RayError

        try:
            yield
        except (ConnectionError, ValueError) as error:
            if isinstance(error, RayError) or (
                isinstance(error, ValueError) and CLOSED not in str(error)
            ):
                raise
            raise self._missed(first_line(error)) from error

    def close(self) -> None:
        """Stop polling. To be called before leaving Ray: later questions would not be answered."""
        self._lost = self.gone
        self._closing.set()
        self._wanted.set()
        if not self._lost:
            self._thread.join(LAST_CHANCE_S)

    def _silent(self) -> bool:
        return time.monotonic() - self._heard_s > self._patience_s

    def _missed(self, why: str) -> ClusterLost:
        self._lost = True
        return ClusterLost(
            f"the head of the Ray cluster is gone ({why}); everything measured so far is saved",
            where="executor.ray",
            remedy=(
                "run the same command again, without --fresh, to resume once there is a cluster at"
                " this address"
            ),
        )

    def _ask(self) -> None:
        while not self._closing.is_set():
            self._wanted.clear()
            asked_s = time.monotonic()
            try:
                nodes = self._question()
            except Exception as error:  # of any kind: it counts as no answer
                self._trouble = first_line(error)
            else:
                with self._news:
                    self._nodes, self._asked_s, self._heard_s = nodes, asked_s, time.monotonic()
                    self._trouble = ""
                    self._news.notify_all()
            self._wanted.wait(ASK_S)


def rays_patience_s() -> float:
    """Seconds that Ray's processes continue without a head."""
    try:
        return float(os.environ.get(RAYS_PATIENCE, RAYS_PATIENCE_S))
    except ValueError:
        return RAYS_PATIENCE_S
