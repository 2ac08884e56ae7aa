"""What an ended session left in its directory: outcome, last sign of life, running processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune_trials.file_restore.log import SHARED
from autotune_trials.paths import SessionPaths, publish
from autotune_trials.supervisor.procfs import stat_of

RUNNING = "running"  # file in the ledger: processes that could not be killed
LAST_SIGN = "last-sign"  # file in the ledger: its mtime is the session's last sign of life
SILENT_S = 120.0  # a job may still write files this long after its last sign of life
KINDS = ("restored", "removed", "prepared", "left", "unkept", "failed", "crossed")

Outcome = dict[str, list[Any]]


def outcome_of(session: str) -> Outcome | None:
    """The outcome of an earlier restore; None if there was none or it did not complete."""
    try:
        done: Outcome = json.loads(SessionPaths(Path(session)).outcome.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return None if done["failed"] else done


def save(session: str, outcome: Outcome) -> None:
    publish(SessionPaths(Path(session)).outcome, json.dumps(outcome, indent=1))


def not_yet(session: str, running: Iterable[int], late: bool) -> Outcome | None:
    """The outcome to report while processes that use the session's ledger still run; None if none
    does. ``late``: whoever shared the ledger has ended, too.

    The processes are recorded in the ledger, so that a later call also checks for them.
    """
    written = SessionPaths(Path(session)).written
    noted = written / RUNNING
    if not written.is_dir():
        return None
    known = set(noted.read_text("utf-8").splitlines()) if noted.exists() else set()
    known |= {f"{pid} {began}" for pid in running if (began := _began(pid))}
    alive = sorted(line for line in known if _began(int(line.split()[0])) == line.split()[1])
    if alive:
        noted.write_text("\n".join(alive), "utf-8")
        pids = ", ".join(line.split()[0] for line in alive)
        who = f"processes of this trial could not be killed and may still write ({pids})"
    elif not late and _is_shared(written):
        who = "the other trial of its pair may still write"
    else:
        return None
    why = f"{who}; once they have ended, the next run restores everything"
    outcome: Outcome = {kind: [] for kind in KINDS} | {"failed": [[session, why, ""]]}
    save(session, outcome)
    return outcome


def _is_shared(written: Path) -> bool:
    """Whether another session, which has not ended, still uses this ledger."""
    sharer = _sharer(written)
    return sharer is not None and sharer.written.is_symlink()


def _sharer(written: Path) -> SessionPaths | None:
    """The session that shares the ledger ``written`` of another one; None: there is none."""
    try:
        return SessionPaths(Path((written / SHARED).read_text("utf-8")).parent)
    except OSError:
        return None


def _began(pid: int) -> str:
    """Start time of a process in ticks since boot; "" if it is gone."""
    stat = stat_of(pid)
    return "" if stat is None or stat[0] in "ZX" else str(stat[2])


def last_sign(session: str) -> float:
    """The session's last sign of life in seconds since the epoch: the newest mtime of its files, of
    those of a session that shares its ledger, and of the run's journal.

    Stored on the first call, because restoring also writes files of the session.
    """
    paths = SessionPaths(Path(session))
    noted = paths.written / LAST_SIGN
    if not noted.exists():
        # ignore directories and the kept files: the user may have taken an original out since
        sharer = _sharer(paths.written)
        both = [paths, *([sharer] if sharer is not None and sharer.root.is_dir() else [])]
        files = [file for it in both for file in (*it.root.iterdir(), *it.markers.glob("*"))]
        files += [*paths.written.iterdir(), paths.root.parent.parent / "journal.jsonl"]
        last = max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
        noted.touch()
        os.utime(noted, (last, last))
    return noted.stat().st_mtime


def training_began(session: str) -> float | None:
    """Time of the first backward call in seconds since the epoch; None if there was none."""
    try:
        markers = SessionPaths(Path(session)).markers.glob("backward-*")
        return min((marker.stat().st_mtime for marker in markers), default=None)
    except OSError:
        return None


def files_in(path: str) -> list[str]:
    if not os.path.isdir(path) or os.path.islink(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
