"""What the session has made, under the names it has now: a log that every process of the job writes, and what it adds up to.

    +  file made         d  directory made
    -  file removed      x  directory removed
    >  file renamed      m  directory renamed, and with it all that is in it
    !  somebody else's file is put here

Only what is named here is ever removed when the session ends: whatever else lies there is somebody's. Everything is logged before it
happens, and may then fail: a renamed file is known by its inode as well. What is made where nobody looks after it (temporary files, caches)
is marked ``~``: it stays, unless it gets to a place that is looked after. ``c`` marks a checkpoint.

    <session>/written/i-<pid>    records of five fields, each ended by NUL: when, what, path, new path, inode
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

STAYS, CHECKPOINT = 1, 2  # flags of a name
_FIELDS = 5
Record = tuple[int, str, str, str, int]


class Names:
    """What all processes of the session have made so far. Read from the logs when it is asked for, and only what is new in them."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.files: dict[str, tuple[int, int]] = {}  # path -> flags, inode (0: not known)
        self.folders: dict[str, int] = {}  # path -> flags
        self.gone: set[str] = set()  # where a file was made and has been removed or renamed; what lies there now is somebody else's
        self._read_bytes: dict[str, int] = {}  # log -> how far it has been read
        self._lock = threading.Lock()

    def log(self, what: str, path: str, to: str = "", *, flags: int = 0, inode: int = 0) -> None:
        """Note one change. The log is opened for each: a job that closes every descriptor it does not know must not find ours among its files."""
        marks = "~" * bool(flags & STAYS) + "c" * bool(flags & CHECKPOINT)
        fields = (b"%d" % time.monotonic_ns(), (what + marks).encode(), os.fsencode(path), os.fsencode(to), b"%d" % inode, b"")
        file = os.open(os.path.join(self._directory, f"i-{os.getpid()}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(file, b"\0".join(fields))
        finally:
            os.close(file)

    def made(self, path: str, stat: Any) -> bool:
        """Whether the file at ``path``, whose lstat is ``stat``, is one the session has made."""
        self.catch_up()
        return self.is_the_one(path, stat)

    def is_the_one(self, path: str, stat: Any) -> bool:
        known = self.files.get(path)
        return known is not None and known[1] in (0, stat.st_ino)

    def made_folder(self, path: str) -> bool:
        self.catch_up()
        return path in self.folders

    def goes_with_a_folder(self, path: str) -> bool:
        """Whether ``path`` lies in a directory that the session has made and that does not stay."""
        self.catch_up()
        return _inside(path, {folder for folder, flags in self.folders.items() if not flags & STAYS})

    def catch_up(self) -> None:
        with self._lock:
            for record in sorted(self._news()):
                self._apply(*record[1:])

    def rename(self, path: str, to: str) -> None:
        """The directory ``path`` is called ``to`` from now on."""
        self.folders.pop(to, None)
        both: tuple[dict[str, Any], ...] = (self.files, self.folders)
        for names in both:
            for name in _below(names, path):
                names[to + name[len(path) :]] = names.pop(name)

    def _apply(self, what: str, path: str, to: str, inode: int) -> None:
        kind, flags = what[0], STAYS * ("~" in what) | CHECKPOINT * ("c" in what)
        if kind == "+":
            self.files[path] = flags, inode
            self.gone.discard(path)
        elif kind == "d":
            self.folders[path] = flags
        elif kind == "x":
            self.folders.pop(path, None)
        elif kind == "m":
            self.rename(path, to)
            if not flags & STAYS:
                self._enter(to)
        elif kind in "->!":
            before = self.files.pop(path, None)
            if before is not None or kind == "!":
                self.gone.add(path)
            if kind == ">":
                checkpoint = before[0] & CHECKPOINT if before is not None else 0
                self.files[to] = flags | checkpoint, inode
                self.gone.discard(to)

    def _enter(self, folder: str) -> None:
        """What is in ``folder`` has come to where it is looked after."""
        for name in _below(self.files, folder):
            flags, inode = self.files[name]
            self.files[name] = flags & ~STAYS, inode
        for name in _below(self.folders, folder):
            self.folders[name] &= ~STAYS

    def _news(self) -> Iterator[Record]:
        """Records nobody has asked for yet; of a log that a power cut has spoilt, what comes before that."""
        for name in os.listdir(self._directory) if os.path.isdir(self._directory) else ():
            if not name.startswith("i-"):
                continue
            log, begin = os.path.join(self._directory, name), self._read_bytes.get(name, 0)
            if os.stat(log).st_size <= begin:
                continue
            with open(log, "rb") as file:
                file.seek(begin)
                news = file.read()
            fields = news.split(b"\0")
            whole = (len(fields) - 1) // _FIELDS * _FIELDS
            self._read_bytes[name] = begin + sum(map(len, fields[:whole])) + whole
            for at in range(0, whole, _FIELDS):
                when, what, path, to, inode = fields[at : at + _FIELDS]
                if not when.isdigit() or not inode.isdigit():
                    break
                yield int(when), what.decode(), os.fsdecode(path), os.fsdecode(to), int(inode)

    def begin_again(self) -> None:
        """In a forked child: another thread of the parent may have been in the middle of reading."""
        if self._lock.locked():
            self.files, self.folders, self.gone, self._read_bytes = {}, {}, set(), {}
        self._lock = threading.Lock()


def _below(names: Any, folder: str) -> list[str]:
    """``folder`` itself and what is in it."""
    return [name for name in names if name == folder or name.startswith(folder + os.sep)]


def _inside(path: str, folders: Any) -> bool:
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        if folder in folders:
            return True
        folder = os.path.dirname(folder)
    return False
