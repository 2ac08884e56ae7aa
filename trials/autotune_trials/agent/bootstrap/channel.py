"""The agent's end of the socket to the tuner."""

from __future__ import annotations

import socket
import threading
from typing import Any

from autotune_trials.protocol.messages import dump, load


class Channel:
    """JSON lines over a Unix socket. Connects on first use; losing the tuner is not an error here.
    Any thread may send; only the one that trains receives."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._buffer = b""
        # A long message goes in parts. Reentrant: a signal handler of the job's may end up here too.
        self._sending = threading.RLock()
        self.closed = not path

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def send(self, message: Any) -> bool:
        """Send one message; False if the tuner is gone."""
        if self.closed:
            return False
        frame = dump(message)
        with self._sending:
            if self.closed:  # while we waited for the lock
                return False
            try:
                if self._socket is None:
                    self._connect()
                connection = self._socket  # another thread may close the channel
                if connection is not None:
                    connection.sendall(frame)
                return connection is not None
            except OSError:
                self.close()
                return False

    def receive(self) -> Any | None:
        """Wait for the next message; None if the tuner is gone."""
        while not self.closed and b"\n" not in self._buffer:
            try:
                assert self._socket is not None
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            if not data:
                self.close()
                return None
            self._buffer += data
        if self.closed:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return load(line)

    def close(self) -> None:
        """Close this process's end. Idempotent; in a forked child the parent's end stays open."""
        self.closed = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        self._socket = connection
