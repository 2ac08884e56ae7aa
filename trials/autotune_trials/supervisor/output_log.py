"""Log files for the command's output: first and last part only, with the job's secrets masked."""

from __future__ import annotations

import os

from autotune_trials.supervisor.masking import Masks

HEAD_BYTES = TAIL_BYTES = 4 << 20


class CappedLog:
    """A log file that always holds the first ``head`` and at least the last ``tail`` bytes.

    │ head │ … N bytes left out … │ last part, between tail and 2 × tail │
    """

    def __init__(self, path: str, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115
        self._head, self._tail = head, tail
        self._size = self._total = 0  # bytes in the file; bytes ever written

    def write(self, data: bytes) -> None:
        self._total += len(data)
        try:
            self._file.write(data)
            self._size += len(data)
            if self._size > self._head + 2 * self._tail:
                self._compact()
        except OSError:  # disk full: the job must go on, and losing its output matters least
            pass

    def _compact(self) -> None:
        self._file.seek(self._size - self._tail)
        last = self._file.read(self._tail)
        dropped = self._total - self._head - len(last)
        middle = f"\n[autotune: {dropped} bytes left out here]\n".encode() + last
        self._file.seek(self._head)
        self._file.write(middle)
        self._file.truncate()
        self._size = self._head + len(middle)

    def close(self) -> None:
        self._file.close()


class Masked:
    """A log with the job's secrets masked, even those split across two reads.

    Bytes that may be the start of a secret are held back until more data arrives.
    """

    def __init__(self, log: CappedLog, secrets: list[str]) -> None:
        self._log, self._masks, self._held = log, Masks(secrets), b""
        self._secrets = [os.fsencode(secret) for secret in self._masks.secrets]

    def write(self, data: bytes) -> None:
        data = self._masks.data(self._held + data)
        whole = len(data) - max((_begun(data, secret) for secret in self._secrets), default=0)
        self._held = data[whole:]
        self._log.write(data[:whole])

    def flush(self) -> None:
        """Write the bytes held back; call when no more output is expected soon."""
        self._log.write(self._held)
        self._held = b""

    def close(self) -> None:
        self.flush()
        self._log.close()


def _begun(data: bytes, secret: bytes) -> int:
    """The number of bytes at the end of ``data`` that could begin ``secret``."""
    at = max(0, len(data) - len(secret) + 1)
    while (at := data.find(secret[:1], at)) >= 0:
        if secret.startswith(data[at:]):
            return len(data) - at
        at += 1
    return 0
