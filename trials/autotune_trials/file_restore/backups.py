"""Brings a file of the user's to safety before the job changes it, once in a session, whichever of its processes comes first.

    grown     its length is noted                     linked    it gets a second name
    moved     it is renamed out of the way            copied    it is copied, up to a gibibyte

Nothing is copied where a rename or a link will do: a checkpoint of ten gigabytes costs what a small file costs. A claim is a file that only
one process can create; the others wait until the original is safe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from autotune_trials.file_restore.claims import claim, digest, read_json

COPY_BYTES = 1 << 30  # a larger file that is changed in place is not copied: it would cost the trial seconds, and the disk its room
WAIT_S = 2.0  # for another process that has claimed the same file and is moving it
GROWS, WHOLE = 1, 2  # how much of a path a claim keeps: its beginning, everything
ITSELF = ".itself"  # beside a copy: a second name of the file that was copied
BESIDE = ".autotune-kept-"  # an original that stays on its own disk, because the session lies on another


class CannotKeep(OSError):
    """A file of the user's can be neither noted nor kept: what would change it must not happen."""


class Originals:
    """The claims of one process. ``origin`` is what a path was called when the trial began (see renames.py)."""

    def __init__(self, ledger: str) -> None:
        self.directory = ledger
        self._seen: dict[str, int] = {}  # origin -> how much of it is kept

    def keep(self, path: str, origin: str, level: int, kind: str, stat: Any, **more: Any) -> bool:
        """Note ``path`` as it is now and bring it to safety; False if its origin has been noted before.

        Raises:
            CannotKeep: neither is possible.
        """
        if self._seen.get(origin, 0) >= level:
            return False
        name = f"{digest(origin)}-{level}"
        entry = _entry(kind, origin, stat) | more
        if kind in _WAYS:
            entry["kept"], entry["beside"] = self._places_for(path, name)
        try:
            mine = claim(os.path.join(self.directory, f"e-{name}"), entry, durable=kind in ("moved", "copied"))
        except OSError as error:
            raise _cannot_keep(path, error) from error
        if mine:
            self._bring_to_safety(path, entry, name)
        elif "kept" in entry:
            self._wait_for_the_other(path, self._noted(origin, level))
        self._seen[origin] = level
        return mine

    def note_renamed(self, path: str, target: str, stat: Any, **more: Any) -> None:
        """A directory is about to be renamed. Each time is noted: they are undone last first."""
        entry = _entry("renamed", path, stat) | {"to": target} | more
        try:
            claim(os.path.join(self.directory, f"e-{entry['at']}-{os.getpid()}"), entry)
        except OSError as error:
            raise _cannot_keep(path, error) from error

    def is_kept(self, origin: str, stat: Any) -> bool:
        """Whether the very file ``stat`` tells of will be put back to ``origin``."""
        noted = self._noted(origin, WHOLE)
        return bool(noted) and (noted.get("dev"), noted.get("ino")) == (stat.st_dev, stat.st_ino)

    def shares_a_kept_file(self, origin: str, stat: Any) -> bool:
        """Whether what is written to this file would reach the one that is kept: the job has tried to remove or rename it."""
        return bool(stat.st_nlink > 1) and self.is_kept(origin, stat) and self._noted(origin, WHOLE).get("kind") != "copied"

    def _noted(self, origin: str, level: int) -> dict[str, Any]:
        return read_json(os.path.join(self.directory, f"e-{digest(origin)}-{level}"))

    def _places_for(self, path: str, name: str) -> tuple[str, str]:
        """Where the original goes, and where else if that cannot be: two mounts of one disk look like one.

        Into the session's directory; if that lies on another disk, as far up as one may write: the job may list its own directory, or
        remove it. The name is this session's own: another one may keep the same path.
        """
        kept, folder = os.path.join(self.directory, "kept"), os.path.dirname(path)
        own = f"{BESIDE}{digest(self.directory)[:8]}-{name}"
        if os.stat(kept).st_dev == os.lstat(folder).st_dev:
            return os.path.join(kept, name), os.path.join(folder, own)
        return os.path.join(_top(folder), own), os.path.join(folder, own)

    def _bring_to_safety(self, path: str, entry: dict[str, Any], name: str) -> None:
        """What cannot be kept one way is kept another, or said not to be."""
        import errno

        trouble: OSError | None = None
        for way in _WAYS.get(entry["kind"], ()):
            for place in dict.fromkeys((entry["kept"], entry["beside"])):
                try:
                    way(path, place)
                    return
                except OSError as error:
                    trouble = error
        if trouble is None:
            return
        now = _lstat(path)
        if now is not None and _is_regular(now) and not (entry["kind"] == "copied" and trouble.errno == errno.EFBIG):
            os.unlink(os.path.join(self.directory, f"e-{name}"))  # so that the next attempt is not taken for the second
            raise _cannot_keep(path, trouble) from trouble
        claim(os.path.join(self.directory, f"u-{name}"), {**entry, "kind": "unkept", "why": trouble.strerror or str(trouble)})

    def _wait_for_the_other(self, path: str, entry: dict[str, Any]) -> None:
        """Another process brings this very file to safety: until it has, opening it would spoil the original."""
        deadline, copied = time.monotonic() + WAIT_S, -1
        while "kept" in entry and not any(map(os.path.lexists, (entry["kept"], entry["beside"]))) and time.monotonic() < deadline:
            for half in (_lstat(entry[place] + ".half") for place in ("kept", "beside")):
                if half is not None and half.st_size > copied:  # a large one takes its time
                    deadline, copied = time.monotonic() + WAIT_S, half.st_size
            now = _lstat(path)
            if now is None or now.st_ino != entry["ino"]:
                return
            time.sleep(0.001)


def part(path: str, anew: bool) -> None:
    """Make ``path`` a file of its own: what is written to it must not reach its other name.

    Args:
        anew: what is in it is about to be cut off.

    Raises:
        CannotKeep: it must not be written to.
    """
    import shutil

    own = f"{path}{BESIDE}own"
    try:
        if anew:
            os.unlink(path)
            return
        shutil.copy2(path, own)
        os.replace(own, path)
    except OSError as error:
        raise _cannot_keep(path, error) from error
    finally:
        if os.path.lexists(own):
            os.unlink(own)


def _entry(kind: str, path: str, stat: Any) -> dict[str, Any]:
    about = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "mode": stat.st_mode & 0o7777, "ino": stat.st_ino, "dev": stat.st_dev}
    return {"kind": kind, "path": path, "at": time.monotonic_ns(), **about}


def _cannot_keep(path: str, error: OSError) -> CannotKeep:
    import errno

    why = error.strerror or str(error)
    return CannotKeep(error.errno or errno.EIO, f"autotune cannot keep this file as it is ({why}), so the trial may not change it", path)


def _lstat(path: str) -> Any:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _is_regular(stat: Any) -> bool:
    return bool(stat.st_mode & 0o170000 == 0o100000)


def _top(folder: str) -> str:
    """The highest directory above ``folder`` on the same disk that may be written to."""
    device = os.lstat(folder).st_dev
    while True:
        parent = os.path.dirname(folder)
        if parent == folder or os.lstat(parent).st_dev != device or not os.access(parent, os.W_OK | os.X_OK):
            return folder
        folder = parent


def _link(path: str, kept: str) -> None:
    os.link(path, kept, follow_symlinks=False)


def _copy(path: str, kept: str) -> None:
    """A copy beside a temporary name first, so that a half copy is never taken for the original.

    Raises:
        OSError: too large, or no room.
    """
    import errno
    import shutil

    if os.path.islink(path):
        os.symlink(os.readlink(path), kept)
        return
    if os.stat(path).st_size > COPY_BYTES:
        raise OSError(errno.EFBIG, f"larger than {COPY_BYTES >> 20} MiB and changed in place")
    half = kept + ".half"
    try:
        shutil.copy2(path, half)
        if os.stat(path).st_nlink > 1:  # its other names are to have their contents back, wherever the job renames this one to
            os.link(path, kept + ITSELF)
        os.rename(half, kept)
    finally:
        if os.path.exists(half):
            os.unlink(half)


# Tried in order: what a disk or a directory's mode does not allow is copied.
_WAYS: dict[str, tuple[Callable[[str, str], None], ...]] = {"moved": (os.rename, _copy), "linked": (_link, _copy), "copied": (_copy,)}
