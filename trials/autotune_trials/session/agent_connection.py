"""The tuner's end of the connection to one training process."""

from __future__ import annotations

import socket
from typing import Any

from autotune_trials.protocol.messages import ELSEWHERE, Fault, Hello, dump, load
from autotune_trials.supervisor import procfs
from autotune_trials.supervisor.masking import Masks


class Connection:
    def __init__(self, connection: socket.socket, masks: Masks) -> None:
        self.socket, self.open, self._masks, self._rest = connection, True, masks, b""
        self.hello: Hello | None = None

    def receive(self) -> list[Any]:
        """Return the messages received; clear ``open`` at EOF."""
        while self.open:
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.open = bool(data)
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [_understood(self._masks.message(line)) for line in lines if line]

    def send(self, message: Any, patience_s: float = 10.0) -> None:
        """Send one message.

        Raises:
            OSError: the process does not read it.
        """
        self.socket.settimeout(patience_s)
        self.socket.sendall(dump(message))
        self.socket.setblocking(False)

    @property
    def dead(self) -> bool:
        """Whether the process is gone (its forked workers may keep the connection open)."""
        return not self.open or (
            self.hello is not None
            and self.hello.pid != ELSEWHERE
            and not procfs.alive(self.hello.pid)
        )


def _understood(line: bytes) -> Any:
    try:
        return load(line)
    except (ValueError, TypeError) as error:
        return Fault(
            -1, "the protocol", f"the tuner could not parse a message from the agent: {error}"
        )
