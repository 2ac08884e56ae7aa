"""Keeps files that a job is about to change, so that they can be put back.

A file is kept by giving it a second name, which costs the same for any size: what the job removes,
replaces or renames is then still there. What is changed in place is copied as well, up to a
gibibyte; of what is appended to, its length is enough.

    <session>/written/kept/<device>-<inode>        a second name; a copy where there can be none
                           <device>-<inode>.at     where that lies, if not here: on the file's own disk
                           <device>-<inode>.was    its contents, before it was changed in place
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

COPY_BYTES = 1 << 30  # copying more would take seconds of the trial, and the disk's room
# an original that stays on its own disk, because the session lies on another
BESIDE = ".autotune-kept-"


class CannotKeep(OSError):
    """A file of the user's cannot be kept: what would change it must not happen."""


class Backups:
    def __init__(self, ledger: str) -> None:
        self._folder = os.path.join(ledger, "kept")

    def keep(self, path: str, stat: os.stat_result) -> None:
        """Give the file ``path``, whose lstat is ``stat``, a second name, unless it has one.

        Raises:
            CannotKeep: it can be neither linked nor copied.
        """
        entry = {"dev": stat.st_dev, "ino": stat.st_ino}
        if self.original(entry):
            return
        here = self._path(entry)
        try:
            if any(_linked(path, place, here + ".at") for place in self._places(path, here)):
                return
            self._copy(path, here)
        except OSError as error:
            raise cannot_keep(path, error) from error

    def keep_contents(self, path: str, stat: os.stat_result) -> str:
        """Copy what is in a file that is kept and about to be changed in place; why not, or "".

        Raises:
            CannotKeep: there is no room.
        """
        entry = {"dev": stat.st_dev, "ino": stat.st_ino}
        try:
            if os.path.exists(self.contents(entry)) or self.is_copy(entry):
                return ""
            if stat.st_size > COPY_BYTES:
                return f"larger than {COPY_BYTES >> 20} MiB and changed in place"
            self._copy(path, self.contents(entry))
        except OSError as error:
            raise cannot_keep(path, error) from error
        return ""

    def original(self, entry: Mapping[str, Any]) -> str:
        """Where the kept file lies; "" if it is not there."""
        here = self._path(entry)
        with (
            contextlib.suppress(OSError),
            open(here + ".at", encoding="utf-8", errors="surrogateescape") as file,
        ):
            here = file.read()
        return here if os.path.lexists(here) else ""

    def contents(self, entry: Mapping[str, Any]) -> str:
        """Where its contents are, if they were copied."""
        return self._path(entry) + ".was"

    def is_copy(self, entry: Mapping[str, Any]) -> bool:
        """Whether what is kept is a copy, not the file itself."""
        stat = os.lstat(self.original(entry))
        return (stat.st_dev, stat.st_ino) != (entry["dev"], entry["ino"])

    def flush(self) -> None:
        """The names of what is kept are on the disk when this returns."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def nameless(self, entries: list[dict[str, Any]]) -> list[str]:
        """Kept files of which no entry says whose they are: a power cut has spoilt the log."""
        known = {os.path.basename(self._path(entry)) for entry in entries}
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        return [
            os.path.join(self._folder, name)
            for name in names
            if name.partition(".")[0] not in known
        ]

    def clear(self) -> None:
        """Remove the second names that lie outside the session's directory."""
        for name in os.listdir(self._folder) if os.path.isdir(self._folder) else ():
            if name.endswith(".at"):
                with open(
                    os.path.join(self._folder, name), encoding="utf-8", errors="surrogateescape"
                ) as file:
                    place = file.read()
                with contextlib.suppress(OSError):
                    os.unlink(place)

    def _path(self, entry: Mapping[str, Any]) -> str:
        return os.path.join(self._folder, f"{entry['dev']}-{entry['ino']}")

    def _places(self, path: str, here: str) -> tuple[str, ...]:
        """Where its second name may lie, best first: two mounts of one disk look like one.

        On another disk as far up as one may write: the job may list its own directory, or remove
        it. The name is this session's own, since another one may keep the same file.
        """
        import hashlib

        folder = os.path.dirname(path)
        session = hashlib.blake2b(os.fsencode(self._folder), digest_size=4).hexdigest()
        beside = f"{BESIDE}{session}-{os.path.basename(here)}"
        far, near = os.path.join(_top(folder), beside), os.path.join(folder, beside)
        return (
            (here, far, near)
            if os.lstat(folder).st_dev == os.stat(self._folder).st_dev
            else (far, near)
        )

    def _copy(self, path: str, to: str) -> None:
        """By way of a temporary name, so that half a copy is never taken for the original.

        Raises:
            OSError: too large, no file with contents, or no room.
        """
        import errno
        import shutil

        if os.path.islink(path):
            os.symlink(os.readlink(path), to)
            return
        if not os.path.isfile(path):
            raise OSError(errno.EINVAL, "it is no regular file")
        if os.stat(path).st_size > COPY_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {COPY_BYTES >> 20} MiB")
        half = f"{to}.half"
        try:
            shutil.copy2(path, half)
            os.rename(half, to)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(half)


def cannot_keep(path: str, error: OSError) -> CannotKeep:
    import errno

    why = error.strerror or str(error)
    text = f"autotune cannot keep this file as it is ({why}), so the trial may not change it"
    return CannotKeep(error.errno or errno.EIO, text, path)


def _linked(path: str, place: str, pointer: str) -> bool:
    """Whether ``path`` has got the second name ``place``; a place that is not beside ``pointer`` is
    written there.
    """
    elsewhere = os.path.dirname(place) != os.path.dirname(pointer)
    try:
        if elsewhere:
            with open(pointer, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(place)
        os.link(path, place, follow_symlinks=False)
    except OSError:
        if elsewhere:
            with contextlib.suppress(OSError):
                os.unlink(pointer)
        return False
    return True


def _top(folder: str) -> str:
    """The highest directory above ``folder`` on the same disk that may be written to."""
    device = os.lstat(folder).st_dev
    while True:
        parent = os.path.dirname(folder)
        there = os.access(parent, os.W_OK | os.X_OK) and os.lstat(parent).st_dev == device
        if parent == folder or not there:
            return folder
        folder = parent
