"""What trials wrote outside their own directories: put back, reported once, never left half done.

a session ends       Session.close puts back what was recorded (autotune_trials.file_restore.restore); written.json lists it
the first one        the working directory is also scanned for files that changed unrecorded: noticed.json
a session begins     not while a user's file could not be put back: the next trial would start from another state
a run begins         it locks this working directory and those inside it; what a killed run left changed is put back first
a run ends           summary() of all sessions, for the closing screen and result.json
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, ClassVar

from autotune.errors import InputError
from autotune.results import Written
from autotune_trials.diagnosis.classify import markers_of
from autotune_trials.file_restore.restore import Outcome, leftovers, put_back
from autotune_trials.file_restore.scope import PathScope, above
from autotune_trials.paths import SessionPaths, publish, sessions_of

NOTICED = "noticed.json"
SCAN_S = 1.0  # a working directory with a million files is scanned in part
UNRECORDED = "recording what the job writes failed there; its agent.log says why"
MOST_NAMES = 20  # per kind in the result; the sessions' own files have them all


def own_places(run_dir: Path, tracking_uri: str | None) -> tuple[Path, ...]:
    """Paths that the tuner writes itself: the run directory, and a local MLflow store.

    The store's artifacts are included, see autotune.tracking.stores.
    """
    if tracking_uri == "auto":
        database = run_dir.parent / "mlflow.db"
    elif tracking_uri and tracking_uri.startswith("sqlite:///"):
        database = Path(tracking_uri.removeprefix("sqlite:///"))
    else:
        return (run_dir,)
    beside = (database.with_name(database.name + ending) for ending in ("-journal", "-wal", "-shm"))
    return (run_dir, database, *beside, database.parent / "mlartifacts")


class WorkdirLock:
    """Held while trials run in ``workdir`` and are put back.

    Two runs would put back each other's files, also if one's directory lies in the other's. The
    locks are on the directories themselves, so nothing is written anywhere: a run locks its own
    directory exclusively, and shares those above it with other runs in them. Within this process it
    may be taken more than once, and directories inside a held one after it.

    Raises:
        InputError: another run holds the directory, one above it, or one in it.
    """

    _held: ClassVar[dict[str, tuple[list[int], int]]] = {}  # directory -> (descriptors, how often)

    def __init__(self, workdir: Path) -> None:
        self._path: str | None = os.path.realpath(workdir)
        folders, times = self._held.get(self._path) or (self._take(Path(self._path), workdir), 0)
        self._held[self._path] = folders, times + 1

    def _take(self, path: Path, workdir: Path) -> list[int]:
        folders: list[int] = []
        try:
            for folder in (path, *path.parents):
                if str(folder) not in self._held:
                    folders += _locked(folder, alone=folder == path)
        except BlockingIOError:
            _unlock(folders)
            where = (
                "in this working directory, or in one inside it;"
                if folder == path
                else f"in {folder}, which contains this working directory;"
            )
            raise InputError(
                f"another autotune run has trials {where} each would put back the other's files",
                where=str(workdir),
                expected="one run at a time while files are put back",
                remedy=(
                    "wait for it, run in a copy of the directory elsewhere, or set"
                    " side_effects: {put_back: false}"
                ),
            ) from None
        return folders

    def release(self) -> None:
        if self._path is None:
            return
        folders, times = self._held.pop(self._path)
        if times > 1:
            self._held[self._path] = folders, times - 1
        else:
            _unlock(folders)
        self._path = None


def _locked(folder: Path, alone: bool) -> list[int]:
    """A descriptor that locks ``folder``; none if it cannot be locked.

    That is so if it is unreadable or missing, or its file system has no locks.

    Raises:
        BlockingIOError: another process holds it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return []
    return [descriptor]


def _unlock(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        # a forked child may still have it open: closing would not be enough
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def restore_leftovers(run_dir: Path) -> None:
    """Put back what sessions of a killed run left changed. The caller holds the run directory.

    Raises:
        InputError: something cannot be put back.
    """
    for session in leftovers(str(run_dir)):
        require_restored(put_back(session, late=True))


def require_restored(outcome: Outcome | None) -> None:
    """Check that all files were put back.

    Raises:
        InputError: a user's file is not what it was before the trial.
    """
    if outcome is None or not outcome["failed"]:
        return
    path, why, kept = outcome["failed"][0]
    remedy = (
        f"the original is {kept}: move it back by hand, then run the same command again"
        if kept
        else "fix the cause, then run the same command again"
    )
    raise InputError(
        f"a trial changed this file, and it could not be put back: {why}",
        where=path,
        expected="the file as it was",
        remedy=remedy,
    )


def notice(session: Path, workdir: Path, scope: PathScope | None, outcome: Outcome | None) -> None:
    """Store which files below ``workdir`` changed during the session without being recorded."""
    if scope is None or outcome is None:
        return
    since = (session / "session.json").stat().st_mtime
    known = {
        *outcome["restored"],
        *outcome["prepared"],
        *outcome["left"],
        *(path for path, *_ in outcome["unkept"] + outcome["failed"]),
    }
    found = [
        path
        for path in changed_since(os.path.realpath(workdir), since, scope)
        if known.isdisjoint((path, *above(path)))
    ]
    publish(session / NOTICED, json.dumps(found))


def changed_since(workdir: str, since: float, scope: PathScope) -> Iterator[str]:
    """Files below ``workdir`` written after ``since`` (seconds since the epoch).

    The scan ends after SCAN_S. It skips hidden directories, caches and the tuner's own
    output.
    """
    deadline, mine = time.monotonic() + SCAN_S, open_files()
    for folder, folders, names in os.walk(workdir):
        folders[:] = [
            f for f in folders if not f.startswith(".") and scope.holds(os.path.join(folder, f))
        ]
        for name in names:
            path = os.path.join(folder, name)
            try:
                stat = os.lstat(path)
            except OSError:
                continue
            if (
                stat.st_mtime >= since
                and (stat.st_dev, stat.st_ino) not in mine
                and scope.holds(path)
            ):
                yield path
        if time.monotonic() > deadline:
            return


def summary(run_dir: Path, workdir: Path) -> Written:
    """What all sessions of the run wrote and what became of it.

    Paths below ``workdir`` are relative to it.
    """
    home = os.path.realpath(workdir)
    sessions = sessions_of(run_dir)
    outcomes = [found for session in sessions if (found := _load(SessionPaths(session).outcome))]

    def names(kind: str) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                _shown(path, home) for outcome in outcomes for path in outcome.get(kind, ())
            )
        )

    def reasons(kind: str, at: int) -> dict[str, str]:
        return {
            _shown(entry[0], home): entry[at] or entry[1]
            for outcome in outcomes
            for entry in outcome[kind]
        }

    noticed = [path for session in sessions for path in _load(session / NOTICED) or ()]
    unrecorded = {
        f"perhaps a file that {session.name} wrote": UNRECORDED
        for session in sessions
        if "unrecorded" in markers_of(SessionPaths(session))
    }
    kinds = {kind: names(kind) for kind in ("restored", "removed", "prepared", "left")}
    return Written(
        restored=kinds["restored"][:MOST_NAMES],
        removed=kinds["removed"][:MOST_NAMES],
        prepared=kinds["prepared"][:MOST_NAMES],
        left=kinds["left"][:MOST_NAMES],
        counts={kind: len(found) for kind, found in kinds.items()},
        unkept=reasons("unkept", 1) | unrecorded,
        failed=reasons("failed", 2),
        noticed=tuple(dict.fromkeys(_shown(path, home) for path in noticed))[:MOST_NAMES],
    )


def _shown(path: str, home: str) -> str:
    return os.path.relpath(path, home) if path.startswith(home + os.sep) else path


def open_files() -> set[tuple[int, int]]:
    """Files this process has open, such as the log its own output is redirected to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            stat = os.fstat(int(name))
        except OSError:
            continue
        found.add((stat.st_dev, stat.st_ino))
    return found


def is_one_of(path: Path, files: Container[tuple[int, int]]) -> bool:
    """Whether ``path`` is one of ``files``, as :func:`open_files` gives them."""
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_dev, stat.st_ino) in files


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
