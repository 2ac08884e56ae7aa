"""After a trial: what it made is removed, what it changed is put back. The other half of recorder.py.

    1  files the session has made go, and the directories this empties            removal.py
    2  directories it renamed get their names back, the last first                bring_back.py
    3  directories it removed are made again
    4  files it changed, replaced or removed are again what they were
    5  written.json says what became of what: restored, removed, prepared, left, unkept, failed

Run by the tuner when a session ends; by the warden if the tuner is gone; by the next run over the same directory if both were
killed. That may be days later: what was written after the session's last sign of life is somebody else's then, and left alone.
An entry that has been dealt with is deleted, so that this can be interrupted anywhere and done again. What is not known to be the session's
is left, and told. Nothing is put back while a process of the session is still alive: it would write on. Standard library only.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator

from autotune_trials.file_restore import left_behind
from autotune_trials.file_restore.bring_back import is_in_the_way, make_folder_again, rename_back, restore_file
from autotune_trials.file_restore.left_behind import OUTCOME, SILENT_S, Entry, Outcome, written_since
from autotune_trials.file_restore.removal import Removal
from autotune_trials.file_restore.scope import below


def put_back(session: str, late: bool = False, running: Iterable[int] = ()) -> Outcome:
    """Put back what the session in this directory changed.

    Args:
        late: some time has passed since.
        running: processes of the session that could not be ended. As long as one of them lives nothing is put back; a later call may.

    Returns (and leaves in ``written.json``):
        restored: paths of the user's files that are again what they were
        removed: paths that were made and are gone
        prepared: paths that were made and stay (see removal.py)
        left: paths where something was made, and what lies there now may be another program's
        unkept: [path, why] of files that were changed and could not be kept
        failed: [path, why, where the original lies] of files that could not be put back
    """
    with left_behind.alone(session):
        return left_behind.outcome_of(session) or left_behind.not_yet(session, running) or _Putting(session, late).run()


def leftovers(run_dir: str) -> list[str]:
    """Sessions below ``run_dir`` whose changes were not put back, or not all: tuner and warden were both killed, the disk was full."""
    sessions = os.path.join(run_dir, "sessions")
    try:
        names = sorted(os.listdir(sessions), reverse=True)  # the last first, as within a session
    except OSError:
        return []
    found = [os.path.join(sessions, name) for name in names]
    return [s for s in found if os.path.isdir(os.path.join(s, "written"))]


class _Putting:
    """One session being put back."""

    def __init__(self, session: str, late: bool) -> None:
        self._session, self._ledger = session, os.path.join(session, "written")
        self._entries = left_behind.entries(self._ledger)
        self._limit = left_behind.last_sign(session) + SILENT_S if late else None
        self._removal = Removal(self._ledger)
        self._stay: list[Entry] = []  # directories that keep the name they were given, the first first
        self._outcome = left_behind.nothing()

    def run(self) -> Outcome:
        if os.path.isdir(self._ledger):
            trained = left_behind.training_began(os.path.join(self._session, "crumbs"))
            self._outcome["failed"] += self._removal.remove(self._entries, self._limit, trained)
            self._rename_back()
            self._removal.release({entry["path"] for entry in self._of("folder") + self._of("renamed") if not entry.get("made")})
            for entry in sorted(self._of("folder"), key=lambda e: len(e["path"])):
                self._try(entry, lambda entry: make_folder_again(entry, self._outcome["restored"]))
            for entry in self._entries:
                if entry["kind"] not in ("renamed", "folder"):
                    self._try(entry, self._restore)
            self._removal.remove_empty_folders()
        self._tell()
        if not self._outcome["failed"]:
            shutil.rmtree(self._ledger, ignore_errors=True)
        return self._outcome

    def _rename_back(self) -> None:
        """Directories of the user's, and those that hold one of them: else what the session has made keeps its name."""
        theirs = {(e["dev"], e["ino"]): e["path"] for e in self._of("renamed") if not e["made"]}  # the first name stands: last first
        removed = {entry["path"] for entry in self._of("folder")}
        for entry in self._without_stations():
            if entry["made"] and not _holds_one_of(entry["to"], set(theirs)):
                self._try(entry, lambda _: None)
            else:
                elsewhere = entry["made"] or theirs[entry["dev"], entry["ino"]] in removed
                self._try(entry, functools.partial(rename_back, outcome=self._outcome, removal=self._removal, elsewhere=elsewhere))
            if os.path.isdir(entry["to"]):
                self._stay.insert(0, entry)

    def _without_stations(self) -> Iterator[Entry]:
        """The renames to undo, the last first. Where a directory was on its way and something else is now, it need not get back to."""
        renames = self._of("renamed")
        passed: dict[tuple[int, int], list[Entry]] = {}
        for number, entry in enumerate(renames):
            inode = (entry["dev"], entry["ino"])
            later = passed.get(inode, [])
            entry = {**entry, "to": later[0]["to"]} if later else entry
            if any((e["dev"], e["ino"]) == inode for e in renames[number + 1 :]) and is_in_the_way(entry, self._removal):
                passed.setdefault(inode, []).append(entry)
                continue
            yield entry
            if not os.path.lexists(entry["file"]):  # undone
                for station in passed.pop(inode, []):
                    os.unlink(station["file"])

    def _restore(self, entry: Entry) -> None:
        path = self._here(entry)
        if entry["kind"] in ("moved", "linked", "copied", "grown") and written_since(path, self._limit):
            if os.path.lexists(entry.get("kept", "")):
                raise OSError("it has been written again since; to keep it as it is now, delete the original")
            return
        restore_file(path, entry, self._outcome)

    def _here(self, entry: Entry) -> str:
        """Where the file lies: in a directory of the session's it may have been renamed with that, and stays there."""
        path = str(entry["path"])
        for move in self._stay:
            if below(path, (move["path"],)):
                path = move["to"] + path[len(move["path"]) :]
        return path if os.path.lexists(path) else str(entry["path"])

    def _try(self, entry: Entry, what: Callable[[Entry], None]) -> None:
        try:
            what(entry)
            os.unlink(entry["file"])
        except OSError as error:
            where = entry["to"] if entry["kind"] == "renamed" else entry.get("kept", "")
            self._outcome["failed"].append([entry["path"], f"{type(error).__name__}: {error.strerror or error}", where])

    def _of(self, kind: str) -> list[Entry]:
        return [entry for entry in self._entries if entry["kind"] == kind]

    def _tell(self) -> None:
        outcome, removal = self._outcome, self._removal
        trouble = {path for path, *_ in outcome["unkept"] + outcome["failed"]}
        theirs = {*(entry["path"] for entry in self._entries if not entry.get("made")), *outcome["restored"]}
        lost = tuple(where for _, _, where in outcome["failed"] if where)
        outcome["restored"] = sorted(path for path in set(outcome["restored"]) if path not in trouble)
        outcome["removed"] = [path for path in removal.removed if not os.path.lexists(path)]
        outcome["prepared"] = removal.prepared
        strangers = [path for path in removal.strangers(theirs | trouble) if not below(path, lost)]
        outcome["left"] = sorted({*outcome["left"], *removal.left, *strangers})
        left_behind.save(self._session, outcome)


def _holds_one_of(folder: str, inodes: set[tuple[int, int]]) -> bool:
    """Whether one of these directories lies below ``folder``."""
    for above, folders, _ in os.walk(folder) if inodes else ():
        stats = (os.lstat(os.path.join(above, name)) for name in folders)
        if any((stat.st_dev, stat.st_ino) in inodes for stat in stats):
            return True
    return False


def main() -> None:
    """For the warden: the session, then the processes that could not be ended."""
    put_back(sys.argv[1], running=map(int, sys.argv[2:]))


__all__ = ["OUTCOME", "Outcome", "leftovers", "main", "put_back"]
