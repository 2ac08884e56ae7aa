"""Keeps files that a job is about to change, so that they can be put back.

A file is kept by hard-linking it under a second name, which costs the same for any size: it then
survives if the job removes, replaces or renames it. A file that is changed in place is also copied,
up to 1 GiB; for a large file that is opened to append to, its old length suffices.

    <session>/written/kept/<device>-<inode>        second name; a copy if linking is not possible
                           <device>-<inode>.was    its contents before an in-place change
    .autotune-kept-<session>-<device>-<inode>      second name of a file on another disk
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autotune_trials.file_restore.scope import above

COPY_BYTES = 1 << 30  # copying more would cost the trial seconds, and disk space
# prefix of a second name on the file's own disk, if the session is on another one
BESIDE = ".autotune-kept-"


class CannotKeep(OSError):
    """A file of the user cannot be kept, so the job's call that would change it must fail."""


class Backups:
    def __init__(self, ledger: str) -> None:
        self._folder = os.path.join(ledger, "kept")

    def keep(self, path: str, stat: os.stat_result) -> None:
        """Give the file ``path`` with lstat ``stat`` a second name, unless it already has one.

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
        """Copy the contents of a kept file before an in-place change; return why not, or "".

        Raises:
            CannotKeep: the copy failed, e.g. for lack of disk space.
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
        """The second name (or copy) of the kept file; "" if there is none."""
        return next(filter(os.path.lexists, self._places(path, entry)), "")

    def contents(self, entry: Mapping[str, Any]) -> str:
        """The path its contents are copied to."""
        return self._path(entry) + ".was"

    def flush(self) -> None:
        """Sync the directory of second names to disk."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def nameless(self, entries: Iterable[Mapping[str, Any]]) -> list[str]:
        """Kept files without a log entry: a power cut has damaged the log."""
        known = {os.path.basename(self._path(entry)) for entry in entries}
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        unknown = [name for name in names if name.partition(".")[0] not in known]
        return [os.path.join(self._folder, name) for name in unknown]

    def clear(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Remove the second names outside the session directory."""
        for path, entry in kept.items():
            place = self.original(path, entry)
            if place and os.path.dirname(place) != self._folder:
                with contextlib.suppress(OSError):
                    os.unlink(place)

    def _path(self, entry: Mapping[str, Any]) -> str:
        return os.path.join(self._folder, f"{entry['dev']}-{entry['ino']}")

    def _places(self, path: str, entry: Mapping[str, Any]) -> Iterator[str]:
        """Candidate paths for the second name, best first.

        On another disk it goes into the highest writable directory, since the job may list or
        remove its own one. The name contains the session, since another may keep the same file.
        """
        here = self._path(entry)
        yield here
        beside = f"{BESIDE}{os.stat(self._folder).st_ino:x}-{os.path.basename(here)}"
        for folder in reversed(list(above(path))):
            yield os.path.join(folder, beside)

    def _copy(self, path: str, to: str) -> None:
        """Copy through a temporary name, so that a partial copy is never taken for the original.

        Raises:
            OSError: too large, not a regular file, or no disk space.
        """
        import shutil

        if os.path.islink(path):
            os.symlink(os.readlink(path), to)
            return
        if not os.path.isfile(path):
            raise OSError(errno.EINVAL, "it is not a regular file")
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
    why = error.strerror or str(error)
    text = f"autotune cannot back up this file ({why}), so the trial may not change it"
    return CannotKeep(error.errno or errno.EIO, text, path)


def _linked(path: str, place: str) -> bool:
    """Hard-link ``path`` to ``place``; return whether that succeeded."""
    try:
        os.link(path, place, follow_symlinks=False)
    except OSError:
        return False
    return True
