"""What a session does to files, as every process of its job notes it, and what that adds up to.

    made      a file or directory where nothing was              removed when the session ends
    gone      one of those was removed
    renamed   something that is the session's by now has another name
    kept      a file or directory of somebody else's, as it was  put back when the session ends
    unkept    somebody else's, of which no original is kept      named

Everything is noted before it happens and may then fail, so a file that was renamed or linked is
known by its inode as well.

    <session>/written/log    one JSON object a line
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class Made(NamedTuple):
    """Something that the session has made, under one of its names."""

    inode: int = 0  # 0: not known
    folder: bool = False
    stays: bool = False  # it lies where nothing is looked after: a cache, a temporary directory
    checkpoint: bool = False


class Log:
    """Read and written by all processes of the session, one at a time."""

    def __init__(self, ledger: str) -> None:
        self._path = os.path.join(ledger, "log")
        self._lock = threading.Lock()
        self._file, self._trouble = -1, OSError()
        self._forget()

    def _forget(self) -> None:
        self._read_bytes = 0
        self.made: dict[str, Made] = {}
        self.kept: dict[str, dict[str, Any]] = {}  # by the path it had when the session began
        self.inodes: dict[tuple[int, int], dict[str, Any]] = {}  # the same, but for directories
        self.unkept: dict[str, str] = {}  # path -> why

    def has_made(self, path: str, stat: os.stat_result) -> bool:
        """Whether what lies at ``path``, whose lstat is ``stat``, is something the session has
        made.
        """
        made, folder = self.made.get(path), stat.st_mode & 0o170000 == 0o040000
        return made is not None and made.folder == folder and made.inode in (0, stat.st_ino)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else notes anything meanwhile, and all that was noted before is known.

        The log is opened each time: a job that closes every descriptor it does not know must not
        find ours among its files.
        """
        with self._lock:
            try:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o666)
            except OSError as error:
                self._trouble = error  # for whoever has to note something
                yield
                return
            try:
                self._flock(fcntl.LOCK_EX)
                self._catch_up()
                yield
            finally:
                # a forked child may hold a duplicate: closing is not enough
                self._flock(fcntl.LOCK_UN)
                os.close(self._file)
                self._file = -1

    def _flock(self, how: int) -> None:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, how)

    def note(self, what: str, path: str, **more: Any) -> None:
        """Add one line, inside :meth:`alone`.

        Raises:
            OSError: the disk did not take it.
        """
        import json  # many processes of a job write nothing

        if self._file < 0:
            raise self._trouble
        record = {"what": what, "path": path, **more}
        # what is half a line before it spoils this one not
        line = f"\n{json.dumps(record)}\n".encode()
        if os.write(self._file, line) < len(line):
            import errno

            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._catch_up()

    def flush(self) -> None:
        """On the disk when this returns: after a power cut it must be known what was kept."""
        os.fsync(self._file)

    def begin_again(self) -> None:
        """In a forked child: another thread of the parent may have been reading."""
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
            # cut off, or spoilt by a power cut
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
