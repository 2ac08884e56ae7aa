"""The log of a session's file operations, written by all processes of its job, and their result.

    made      the session created a file or directory            removed when the session ends
    gone      one of those was removed
    renamed   a file that the session made or kept was renamed
    kept      a file or directory the session did not make       put back when the session ends
    unkept    one of those whose original could not be kept      reported
    written   which of two sessions that share this log has written a file
    crossed   one of them used what the other wrote, or took the user's file away  reported

Each operation is logged before it happens and may still fail, so a file that was renamed or linked
is also identified by its inode.

    <session>/written/log    one JSON object per line
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from stat import S_ISDIR
from typing import Any, NamedTuple

# file in the ledger, if a second session shares it: the link by which that one does
SHARED = "shared"
BOTH = "both"  # in place of the session that wrote a file: the contents are of two
PATIENCE_S = 60.0  # for a process to let go of the log; it may be copying a large file


class Made(NamedTuple):
    """A file or directory that the session has made, under one of its names."""

    inode: int = 0  # 0: unknown
    folder: bool = False
    stays: bool = False  # outside the scope (e.g. in a cache or temporary directory): not removed
    checkpoint: bool = False


class Log:
    """The log, read and written by all processes of the session, one at a time."""

    def __init__(self, ledger: str) -> None:
        self._path = os.path.join(ledger, "log")
        self._lock = threading.Lock()
        self._file, self._trouble = -1, OSError()
        self._forget()

    def _forget(self) -> None:
        self._read_bytes = 0
        self.made: dict[str, Made] = {}
        self.kept: dict[str, dict[str, Any]] = {}  # by its path before the session
        self.inodes: dict[tuple[int, int], dict[str, Any]] = {}  # the same, without directories
        self.unkept: dict[str, str] = {}  # path -> why
        # if two sessions share this: path -> who has written it, and the names of all those
        self.writers: dict[str, str] = {}
        self.names: set[str] = set()
        self.crossed: set[str] = set()

    def has_made(self, path: str, stat: os.stat_result) -> bool:
        """Whether the session has made the file or directory at ``path`` with lstat ``stat``."""
        made, folder = self.made.get(path), S_ISDIR(stat.st_mode)
        return made is not None and made.folder == folder and made.inode in (0, stat.st_ino)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the log exclusively, with all earlier entries read.

        The log is opened each time, because some jobs close every file descriptor they do not know.
        """
        with self._lock:
            try:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o666)
            except OSError as error:
                self._trouble = error  # raised by note()
                yield
                return
            try:
                self._flock(fcntl.LOCK_EX)
                self._catch_up()
                yield
            finally:
                # unlock explicitly: a forked child may hold a duplicate of the descriptor
                self._flock(fcntl.LOCK_UN)
                os.close(self._file)
                self._file = -1

    def _flock(self, how: int) -> None:
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(self._file, how)

    def has_news(self) -> bool:
        """Whether other processes have logged something since it was last read."""
        try:
            return os.stat(self._path).st_size > self._read_bytes
        except OSError:
            return False

    def note(self, what: str, path: str, **more: Any) -> None:
        """Append one entry; call inside :meth:`alone`.

        Raises:
            OSError: it could not be written.
        """
        import json  # imported here: many processes of a job never log anything

        if self._file < 0:
            raise self._trouble
        record = {"what": what, "path": path, **more}
        # the leading newline keeps a partial line before it from corrupting this entry
        line = f"\n{json.dumps(record)}\n".encode()
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._catch_up()

    def flush(self) -> None:
        """Sync the log to disk: after a power cut it must be known which files were kept."""
        os.fsync(self._file)

    def begin_again(self) -> None:
        """Reset in a forked child: another thread of the parent may have held the lock."""
        if self._lock.locked():
            self._forget()
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
        self._lock = threading.Lock()

    def _catch_up(self) -> None:
        if (size := os.fstat(self._file).st_size) <= self._read_bytes:
            return
        import json

        news = os.pread(self._file, size - self._read_bytes, self._read_bytes)
        whole = news[: news.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            # skip lines that are incomplete or damaged by a power cut
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if line.strip():
                    self._apply(**json.loads(line))

    def _apply(self, what: str, path: str, to: str = "", **more: Any) -> None:
        if what == "made":
            self.made[path] = Made(**more)
        elif what == "gone":
            self.made.pop(path, None)
        elif what == "renamed":
            self.made.pop(path, None)
            self.made[to] = Made(**more)
        elif what == "kept" and path not in self.kept:
            self.kept[path] = more
            if not more["folder"]:
                self.inodes.setdefault((more["dev"], more["ino"]), more)
        elif what == "unkept":
            self.unkept[path] = more["why"]
        elif what == "written":
            self.writers[path] = more["by"]
            self.names.add(os.path.basename(path))
        elif what == "crossed":
            self.crossed.add(path)


@contextlib.contextmanager
def none_inside(ledger: str) -> Iterator[None]:
    """No process is using the log meanwhile: one that is stopped in there would keep it locked."""
    try:
        file = os.open(os.path.join(ledger, "log"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:  # the session has no ledger
        yield
        return
    try:
        patient_until = time.monotonic() + PATIENCE_S
        while time.monotonic() < patient_until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:  # the file system has no locks
                break
        yield
    finally:
        os.close(file)
