"""The part of a session that runs on another machine: it starts the command there and relays the
messages of its ranks.

    session ──▶ torchrun, node 0 ── rank 0, 1 ──────── socket ──▶ session
                                                                    ▲ └ the relay (autotune/executors/cluster/multinode/relay.py)
    outpost ──▶ torchrun, node 1 ── rank 2, 3 ── socket ── take() ──┘
                                                    ▲───── give() ◀──
"""

from __future__ import annotations

import itertools
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune_trials.diagnosis import classify
from autotune_trials.diagnosis.classify import Diagnosis
from autotune_trials.protocol.messages import ELSEWHERE, Hello
from autotune_trials.session.agent_connection import Connection
from autotune_trials.session.session import Session

SEND_S = 10.0  # longest wait for a rank to read a message


@dataclass(frozen=True)
class Heard:
    """Messages of the local ranks as (connection number, message), with None for a closed
    connection; and how the command ended, if it has.
    """

    messages: Sequence[tuple[int, Any]] = ()
    ended: Diagnosis | None = None


class RemoteSession(Session):
    """Started and closed like any session. :meth:`give` may be called while another thread is in
    :meth:`take`; :meth:`close` waits for :meth:`take`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turning = threading.RLock()
        self._numbers: dict[Connection, int] = {}
        self._count = itertools.count()
        self._closing = False

    def take(self, patience_s: float) -> Heard | None:
        """Return what is new, waiting at most ``patience_s``; None once closed."""
        with self._turning:
            if self.closed or self._closing:
                return None
            if not self.inbox.messages:
                self.inbox.handle_events(patience_s)
            messages = [
                (self._number(connection), _from_elsewhere(message))
                for connection, message in self.inbox.messages
            ]
            self.inbox.messages.clear()
            for connection in [c for c in self._numbers if not c.open]:
                messages.append((self._numbers.pop(connection), None))
            return Heard(messages, None if messages else self._ended())

    def give(self, number: int, line: bytes) -> None:
        """Send a line to a rank; an empty line closes its connection."""
        connection = next((c for c, n in list(self._numbers.items()) if n == number), None)
        if connection is None:
            return
        try:
            if not line:
                connection.socket.shutdown(2)  # take() notices
            while line:
                select.select([], [connection.socket], [], SEND_S)
                line = line[connection.socket.send(line) :]
        except (OSError, ValueError):  # the rank is gone
            return

    def close(self) -> None:
        self._closing = True
        with self._turning:
            super().close()

    def _number(self, connection: Connection) -> int:
        if connection not in self._numbers:
            self._numbers[connection] = next(self._count)
        return self._numbers[connection]

    def _ended(self) -> Diagnosis | None:
        if self.command.lost or self.command.error:
            return Diagnosis(
                "crash",
                self.command.lost or self.command.error,
                log_tail=classify.log_tail(self.paths),
            )
        status = self.command.exit_status
        if status is None:
            return None
        return self.postmortem.after_exit(status, "the measurement was done")


def _from_elsewhere(message: Any) -> Any:
    return replace(message, pid=ELSEWHERE) if isinstance(message, Hello) else message


def torchrun_variables(nodes: int, node: int, address: str, port: int) -> Mapping[str, str]:
    """torchrun's options for one of several nodes, as environment variables: it reads each option
    from PET_<OPTION> (torch/distributed/argparse_util.py).
    """
    return {
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(port),
    }
