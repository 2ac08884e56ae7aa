"""Removes what the session has made, and nothing else: the first half of putting back.

It is done once, before anything of the user's is put back to where the session had something of its own; ``cleared`` says that it has been
done, should the rest be interrupted.

What the job prepares before it trains (a data set it downloads, tokenizes, unpacks) stays, or every trial would do it again: files
of a mebibyte and more in all that were written before the first backward call, not touched after it, and are no checkpoint.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import json
import os

from autotune_trials.file_restore.created import CHECKPOINT, STAYS, Names
from autotune_trials.file_restore.left_behind import Entry, files_in, publish, written_since
from autotune_trials.file_restore.scope import Places, below

PREPARED_BYTES = 1 << 20  # less is a settings file or a log's first lines, and is made again in no time
CLEARED = "cleared"


class Removal:
    """Of what one session has made; a directory stays or goes as a whole, as far as it is the session's.

    ``removed``, ``prepared``, ``left``: highest paths of what the session made, and what became of it; ``left`` was written since.
    ``again``: files that could not be removed. ``folders``: directories that go once nothing of anybody's is left in them.
    """

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger
        self._names = Names(ledger)
        self._names.catch_up()
        self._places = _places(ledger)
        self.removed: list[str] = []
        self.prepared: list[str] = []
        self.left: list[str] = []
        self.again: list[str] = []
        self.folders: list[str] = []

    def remove(self, entries: list[Entry], limit: float | None, trained: float | None) -> list[list[str]]:
        """Remove what there is to remove, unless that has been done; returns [path, why, ""] of what could not be removed.

        Args:
            limit: what was written after that (seconds since the epoch) is not the session's.
            trained: when training began.
        """
        theirs = {entry["path"] for entry in entries if not entry.get("made")}
        if not self._resume():
            self._sort(entries, theirs, limit, trained)
        failed = [[path, why, ""] for path in self.again if not written_since(path, limit) and (why := self._remove_file(path))]
        failed = [trouble for trouble in failed if trouble[0] not in theirs]  # what takes its place will say so
        self.again = [path for path, *_ in failed]
        self.remove_empty_folders()
        self._save(theirs)
        return failed

    def release(self, paths: set[str]) -> None:
        """These are the user's again, also where the session had directories of its own."""
        self.folders = [folder for folder in self.folders if folder not in paths]
        self._save(paths)

    def _save(self, theirs: set[str]) -> None:
        """For whoever has to go on if this is interrupted: by then the user may have ``theirs`` back."""
        state = {name: getattr(self, name) for name in _STATE} | {"folders": [folder for folder in self.folders if folder not in theirs]}
        publish(os.path.join(self._ledger, CLEARED), state)

    def remove_empty_folders(self, within: str = os.sep) -> None:
        for folder in sorted(self.folders, key=len, reverse=True):
            if below(folder, (within,)):
                with contextlib.suppress(OSError):  # it is gone, or something is left in it
                    os.rmdir(folder)

    def make_way(self, path: str) -> None:
        """A directory of the user's is about to get back there: what is empty goes, and what is not is no longer only the session's."""
        self.remove_empty_folders(within=path)
        self.folders = [name for name in self.folders if not below(name, (path,)) or os.path.isdir(name)]

    def renamed(self, folder: str, to: str) -> None:
        """A directory has been renamed back, and what the session has made in it with it."""
        self.folders = [to + f[len(folder) :] if below(f, (folder,)) else f for f in self.folders if f != to]

    def strangers(self, known: set[str]) -> list[str]:
        """Files where the session had made something that are not its own, and not in ``known``; what may stay there anyway is not told."""
        inside = {path for folder in self.folders if os.path.isdir(folder) for path in files_in(folder)}
        found = inside | {path for path in (*self._names.gone, *self.removed) if os.path.lexists(path) and path not in self.folders}
        return sorted(path for path in found - known if path not in self.again and self._to_tell(path) and not below(path, tuple(self.prepared)))

    def _resume(self) -> bool:
        try:
            with open(os.path.join(self._ledger, CLEARED), encoding="utf-8") as file:
                self.__dict__.update(json.load(file))
        except (OSError, ValueError):
            return False
        return True

    def _sort(self, entries: list[Entry], theirs: set[str], limit: float | None, trained: float | None) -> None:
        """What goes and what stays. Where something is to go back to that came from outside, also what else would stay there goes."""
        outside = tuple(entry["path"] for entry in entries if entry.get("outside"))
        folders = {path for path, flags in self._names.folders.items() if self._goes(path, flags) or below(path, outside)}
        files = [path for path, (flags, _) in self._names.files.items() if self._goes(path, flags) or below(path, outside)]
        checkpoints = {path for path, (flags, _) in self._names.files.items() if flags & CHECKPOINT}
        stays: set[str] = set()
        for top in sorted({_top(path, folders) for path in (*files, *folders)}):
            if not os.path.lexists(top):
                continue
            if written_since(top, limit):
                self.left += [top] if top not in theirs else []
                stays.add(top)
            elif top not in theirs and _is_prepared(top, trained, checkpoints):
                self.prepared.append(top)
                stays.add(top)
            elif top not in theirs:
                self.removed.append(top)
        self.again = sorted(path for path in files if _top(path, folders) not in stays)
        self.folders = sorted(path for path in folders if _top(path, folders) not in stays)

    def _remove_file(self, path: str) -> str:
        """Why it could not be removed."""
        try:
            stat = os.lstat(path)
            if self._names.is_the_one(path, stat) and not (os.path.isdir(path) and not os.path.islink(path)):
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror or error}"
        return ""

    def _goes(self, path: str, flags: int) -> bool:
        return not flags & STAYS and not (self._places is not None and (self._places.kept(path) or below(path, self._places.own)))

    def _to_tell(self, path: str) -> bool:
        if self._places is None:
            return True
        patterns = [*map(glob.escape, (*self._places.own, *self._places.caches, *self._places.libraries)), *map(os.path.normpath, self._places.keep)]
        names = [path[:at] for at in range(len(path) + 1) if at == len(path) or path[at] == os.sep]
        names += [os.path.relpath(name, self._places.workdir) for name in names if name.startswith(self._places.workdir + os.sep)]
        return not any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


_STATE = ("removed", "prepared", "left", "again", "folders")


def _places(ledger: str) -> Places | None:
    try:
        with open(os.path.join(ledger, "places"), encoding="utf-8", errors="surrogateescape") as file:
            return Places.load(file.read())
    except (OSError, KeyError, IndexError):
        return None


def _top(path: str, folders: set[str]) -> str:
    """The highest of the directories above ``path`` that were made with it."""
    while (folder := os.path.dirname(path)) in folders:
        path = folder
    return path


def _is_prepared(path: str, trained: float | None, checkpoints: set[str]) -> bool:
    """Whether what lies at ``path`` was prepared for training rather than made by it."""
    if trained is None:
        return False
    total = 0
    for file in files_in(path):
        stat = os.lstat(file)
        if file in checkpoints or stat.st_mtime >= trained:
            return False
        total += stat.st_size
    return total >= PREPARED_BYTES

