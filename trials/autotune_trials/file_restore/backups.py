"""Keeps files that a job is about to change, so that they can be put back.

A file is kept by giving it a second name, which costs the same for any size: what the job removes,
replaces or renames is then still there. What is changed in place is copied as well, up to a
gibibyte; of what is appended to, its length is enough.

    <session>/written/kept/<device>-<inode>        a second name; a copy where there can be none
                           <device>-<inode>.was    its contents, before it was changed in place
    .autotune-kept-<session>-<device>-<inode>      the second name, on another disk
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autotune_trials.file_restore.scope import above

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
        if self.original(path, entry):
            return
        try:
            if not any(_linked(path, place) for place in self._places(path, entry)):
                self._copy(path, self._path(entry))
        except OSError as error:
            raise cannot_keep(path, error) from error

    def keep_contents(self, path: str, stat: os.stat_result) -> str:
        """Copy what is in a file that is kept and about to be changed in place; why not, or "".

        Raises:
            CannotKeep: there is no room.
        """
        entry = {"dev": stat.st_dev, "ino": stat.st_ino}
        try:
            is_copy = not os.path.samestat(os.lstat(self.original(path, entry)), stat)
            if is_copy or os.path.exists(self.contents(entry)):
                return ""
            if stat.st_size > COPY_BYTES:
                return f"larger than {COPY_BYTES >> 20} MiB and changed in place"
            self._copy(path, self.contents(entry))
        except OSError as error:
            raise cannot_keep(path, error) from error
        return ""

    def original(self, path: str, entry: Mapping[str, Any]) -> str:
        """Where the kept file lies; "" if it is not there."""
        return next(filter(os.path.lexists, self._places(path, entry)), "")

    def contents(self, entry: Mapping[str, Any]) -> str:
        """Where its contents are, if they were copied."""
        return self._path(entry) + ".was"

    def flush(self) -> None:
        """The names of what is kept are on the disk when this returns."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def nameless(self, entries: Iterable[Mapping[str, Any]]) -> list[str]:
        """Kept files of which no entry says whose they are: a power cut has spoilt the log."""
        known = {os.path.basename(self._path(entry)) for entry in entries}
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        unknown = [name for name in names if name.partition(".")[0] not in known]
        return [os.path.join(self._folder, name) for name in unknown]

    def clear(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Remove the second names that lie outside the session's directory."""
        for path, entry in kept.items():
            place = self.original(path, entry)
            if place and os.path.dirname(place) != self._folder:
                with contextlib.suppress(OSError):
                    os.unlink(place)

    def _path(self, entry: Mapping[str, Any]) -> str:
        return os.path.join(self._folder, f"{entry['dev']}-{entry['ino']}")

    def _places(self, path: str, entry: Mapping[str, Any]) -> Iterator[str]:
        """Where its second name may lie, best first.

        On another disk as far up as one may write: the job may list its own directory, or remove
        it. The name is this session's own, since another one may keep the same file.
        """
        here = self._path(entry)
        yield here
        beside = f"{BESIDE}{os.stat(self._folder).st_ino:x}-{os.path.basename(here)}"
        for folder in reversed(list(above(path))):
            yield os.path.join(folder, beside)

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


def _linked(path: str, place: str) -> bool:
    """Whether ``path`` has got the second name ``place``."""
    try:
        os.link(path, place, follow_symlinks=False)
    except OSError:
        return False
    return True
