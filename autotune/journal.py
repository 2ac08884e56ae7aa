"""The run's memory: an append-only file of finished pieces of work.

One JSON object per line, flushed to the disk before the next piece starts. After ``kill -9`` at any
moment the file holds every finished piece and at most one torn last line, which is cut off when the
file is opened again. A piece of work is looked up by kind and key, so a resumed run asks "is this
done?" instead of following a script.

    {"kind": "study",  "key": "",        "elapsed_s": 0.0,  "data": {…}}
    {"kind": "trial",  "key": "{…}",     "elapsed_s": 31.2, "data": {…}}
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from autotune.disk import lock
from autotune.errors import InputError
from autotune_trials.paths import append_whole


@dataclass(frozen=True)
class Entry:
    kind: str
    key: str
    elapsed_s: float  # tuning time spent until then, over all processes that worked on this run
    data: Any


class Journal:
    """The journal of one run directory, held under an exclusive lock until :meth:`close`.

    Args:
        path: the journal file; created if missing.
        elapsed: returns the tuning time spent so far, in seconds; stored with every entry.

    Raises:
        InputError: another process holds this run directory, or it cannot be written.
    """

    def __init__(self, path: Path, elapsed: Callable[[float], float]) -> None:
        self.path = path
        self._entries: list[Entry] = []
        self._turn = threading.Lock()  # sessions on several machines finish at any time
        self._file = _open_locked(path)
        self._load()
        before = self._entries[-1].elapsed_s if self._entries else 0.0
        self._elapsed = lambda: elapsed(before)

    def _load(self) -> None:
        whole = 0
        self._file.seek(0)
        # whatever follows the last newline is torn
        for line in self._file.readall().split(b"\n")[:-1]:
            try:
                self._entries.append(Entry(**json.loads(line)))
            except (ValueError, TypeError):
                break  # written by a machine that lost power: nothing after it can be trusted
            whole += len(line) + 1
        self._file.truncate(whole)

    @property
    def elapsed_s(self) -> float:
        return self._elapsed()

    def append(self, kind: str, key: str, data: Any) -> None:
        """Store one finished piece of work; on the disk when this returns.

        Raises:
            OSError: the disk is full, or read-only; nothing is stored.
        """
        with self._turn:
            entry = Entry(kind, key, round(self.elapsed_s, 3), data)
            append_whole(
                self._file, json.dumps(entry.__dict__, separators=(",", ":")).encode() + b"\n"
            )
            self._entries.append(entry)

    def find(self, kind: str, key: str = "") -> Any | None:
        """The data last stored under ``kind`` and ``key``, or None."""
        return next(
            (e.data for e in reversed(tuple(self._entries)) if e.kind == kind and e.key == key),
            None,
        )

    def all(self, kind: str) -> Iterator[Entry]:
        return (e for e in tuple(self._entries) if e.kind == kind)

    def close(self) -> None:
        self._file.close()


def clock() -> Callable[[float], float]:
    """A clock that adds the seconds from now on to what earlier processes spent.

    Monotonic, so clock changes do not matter.
    """
    started = time.monotonic()
    return lambda before: before + time.monotonic() - started


def _open_locked(path: Path) -> FileIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held open for the life of the run: the lock hangs on it
    except OSError as error:
        raise InputError(
            f"the run directory cannot be written: {error.strerror}",
            where=str(path.parent),
            expected="a directory this user may write to",
            remedy="choose another one with --run-dir",
        ) from None
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(file)
        file.close()
        raise InputError(
            f"another autotune run{holder} is working in this directory",
            where=str(path.parent),
            expected="one run per directory",
            remedy="wait for it, stop it, or choose another one with --run-dir",
        ) from None
    return file


def _holder(file: FileIO) -> str:
    """ " (process 123)", or "" if /proc/locks does not name the holder.

    It does not on some file systems, and across containers.
    """
    stat = os.fstat(file.fileno())
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    pids = [int(lock[4]) for lock in locks if place in lock and "->" not in lock]
    return f" (process {pids[0]})" if pids and pids[0] > 0 else ""
