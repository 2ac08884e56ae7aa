"""Directories that the job has renamed, known by their inodes, and what the paths in them were called before.

What is noted of a file is noted under the name it had when the trial began: ``out.1/model.pt`` after a rotation is the user's
``out/model.pt``, and has nothing to do with the ``out.1/model.pt`` that was removed before. A failed rename changes no inode, so it
misleads nobody.

    <session>/written/renamed/<device>-<inode>      a directory: its first name, its name now, and whether the session made it
    <session>/written/renamed/copied-…              a file or directory outside that the job moves to another disk: copies, and then removes
    <session>/written/renamed/shared-…              a file of the user's to which the job has given a second name
"""

from __future__ import annotations

import os
import time
from typing import Any

from autotune_trials.file_restore.claims import digest, read_json, write_json
from autotune_trials.file_restore.scope import below

FOLDER = "renamed"
_SETTLED_NS = 50_000_000  # times of files may be this coarse: a younger listing is read again


class Moves:
    """What every process of the session has renamed."""

    def __init__(self, ledger: str) -> None:
        self._folder = os.path.join(ledger, FOLDER)
        os.makedirs(self._folder, exist_ok=True)
        self._known: dict[str, dict[str, Any]] = {}  # "<device>-<inode>" -> origin, now, made
        self._copied: list[dict[str, Any]] = []
        self._stamp_ns = -1

    def origin(self, path: str) -> str:
        """What ``path`` was called before any directory above it, or itself, was renamed."""
        known = self._refreshed()
        at = path
        while known and at != os.path.dirname(at):
            moved = known.get(_key(_lstat(at)))
            if moved is not None:
                return str(moved["origin"]) + path[len(at) :]
            at = os.path.dirname(at)
        return path

    def renames(self, stat: Any, source: str, target: str, made: bool) -> None:
        """The directory ``source`` is about to be called ``target``; so are those in it."""
        origin = self.origin(source)
        for key, moved in list(self._refreshed().items()):
            if below(moved["now"], (source,)):
                self._write(key, {**moved, "now": target + moved["now"][len(source) :]})
        self._write(_key(stat), {"origin": origin, "now": target, "made": made})

    def holds_any(self, folder: str) -> bool:
        """Whether a directory that was renamed lies in ``folder`` now."""
        return any(below(moved["now"], (folder,)) for moved in self._refreshed().values())

    def forget(self, stat: Any) -> None:
        """A directory is about to be removed: another may get its inode."""
        key = _key(stat)
        if key in self._refreshed():
            os.unlink(os.path.join(self._folder, key))
            self._stamp_ns = -1

    def copies(self, source: str, target: str, enters: bool) -> None:
        """``source``, which nobody looks after, is about to be copied to another disk, and removed.

        Args:
            enters: ``target`` is looked after, so the source is from now on. Else ``target`` is the user's as much as the source was.
        """
        write_json(os.path.join(self._folder, f"copied-{digest(source)}"), {"from": source, "to": target, "enters": enters})
        self._stamp_ns = -1

    def copied_from(self, path: str) -> bool:
        self._refreshed()
        return any(copied["enters"] and below(path, (copied["from"],)) for copied in self._copied)

    def copied_to(self, path: str) -> bool:
        self._refreshed()
        return any(not copied["enters"] and below(path, (copied["to"],)) for copied in self._copied)

    def share(self, stat: Any) -> None:
        """A file of the user's gets a second name: what is written to that must not reach the first."""
        write_json(os.path.join(self._folder, f"shared-{_key(stat)}"), {})

    def shared(self, stat: Any) -> bool:
        return bool(stat.st_nlink > 1) and os.path.exists(os.path.join(self._folder, f"shared-{_key(stat)}"))

    def _write(self, key: str, moved: dict[str, Any]) -> None:
        write_json(os.path.join(self._folder, key), moved)
        self._stamp_ns = -1

    def _refreshed(self) -> dict[str, dict[str, Any]]:
        stamp = os.stat(self._folder).st_mtime_ns
        if stamp != self._stamp_ns:
            self._known, self._copied = _load(self._folder)
            self._stamp_ns = stamp if time.time_ns() - stamp > _SETTLED_NS else -1
        return self._known


def _load(folder: str) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Directories that were renamed, by device and inode, and what was copied to another disk."""
    names = os.listdir(folder)
    moved = {name: read_json(os.path.join(folder, name)) for name in names if name[0].isdigit()}
    copied = [read_json(os.path.join(folder, name)) for name in names if name.startswith("copied-")]
    return {key: found for key, found in moved.items() if found}, [found for found in copied if found]


def _key(stat: Any) -> str:
    return f"{stat.st_dev}-{stat.st_ino}" if stat is not None else ""


def _lstat(path: str) -> Any:
    try:
        return os.lstat(path)
    except OSError:
        return None
