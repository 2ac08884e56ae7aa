"""The tuner's end of a session's socket."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import struct
from collections import deque
from typing import Any

from autotune_trials.session.agent_connection import Connection
from autotune_trials.session.launch_environment import socket_directory
from autotune_trials.supervisor.masking import Masks


class Inbox:
    """The connections to the session's processes and the messages received, in order of arrival.

    Others may register with its selector, too. Events are handled only while
    :meth:`handle_events` runs.
    """

    def __init__(self, masks: Masks) -> None:
        self.selector = selectors.DefaultSelector()
        self.messages: deque[tuple[Connection, Any]] = deque()
        self.connections: list[Connection] = []
        self.folder = self.address = ""  # of the socket, once it listens
        self._masks = masks
        self._listener: socket.socket | None = None

    def listen(self, mark: str) -> None:
        """Raises:
        OSError: the socket cannot be created.
        """
        self.folder = socket_directory(mark)
        self.address = os.path.join(self.folder, "s")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self.selector.register(self._listener, selectors.EVENT_READ, self._on_call)

    def handle_events(self, timeout_s: float) -> None:
        """Handle pending events; wait at most ``timeout_s`` for one."""
        for key, _ in self.selector.select(timeout_s):
            key.data(key.fileobj)

    def drain(self) -> None:
        """Read everything the job sent before it ended."""
        assert self._listener is not None
        self._on_call(self._listener)
        for connection in list(self.connections):
            self._on_message(connection)

    def send(self, connection: Connection, message: Any) -> None:
        try:
            connection.send(message)
        except OSError:  # the process is gone; Waiting reports it with the cause
            self.forget(connection)

    def forget(self, connection: Connection) -> None:
        connection.open = False
        if connection in self.connections:
            self.connections.remove(connection)
            self.selector.unregister(connection.socket)
            connection.socket.close()

    def hang_up(self) -> None:
        for connection in list(self.connections):
            self.forget(connection)

    def close(self) -> None:
        self.hang_up()
        if self._listener is not None:
            self._listener.close()
        self.selector.close()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _on_call(self, listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            if not _is_ours(caller):
                caller.close()
                continue
            caller.setblocking(False)
            connection = Connection(caller, self._masks)
            self.connections.append(connection)
            self.selector.register(
                caller,
                selectors.EVENT_READ,
                lambda _, connection=connection: self._on_message(connection),
            )

    def _on_message(self, connection: Connection) -> None:
        self.messages.extend((connection, message) for message in connection.receive())
        if not connection.open:
            self.forget(connection)


def _is_ours(caller: socket.socket) -> bool:
    """Whether the peer runs as this user. A second safeguard, should the socket's directory become
    accessible to other users.
    """
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1]) == os.geteuid()
