"""What a session that has ended has left in its directory: when it was last heard of, and who of it
still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autotune_trials.paths import SessionPaths, publish
from autotune_trials.supervisor.procfs import stat_of

RUNNING = "running"  # below the ledger: processes that could not be ended
SILENT_S = 120.0  # a job may write a file this long after anything else was heard of it
KINDS = ("restored", "removed", "prepared", "left", "unkept", "failed")

Outcome = dict[str, list[Any]]


def outcome_of(session: str) -> Outcome | None:
    """What was put back before; None if that has not been done, or not all of it."""
    try:
        done: Outcome = json.loads(SessionPaths(Path(session)).outcome.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return None if done["failed"] else done


def save(session: str, outcome: Outcome) -> None:
    publish(SessionPaths(Path(session)).outcome, json.dumps(outcome, indent=1))


@contextlib.contextmanager
def alone(session: str) -> Iterator[None]:
    """The supervisor of a tuner that was interrupted may be at it when the next run begins: one
    after the other.
    """
    folder = os.open(session, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def not_yet(session: str, running: Iterable[int]) -> Outcome | None:
    """What to say while processes of the session still run, which also the next call will want to
    know.
    """
    written = SessionPaths(Path(session)).written
    noted = written / RUNNING
    if not written.is_dir():
        return None
    known = set(noted.read_text("utf-8").splitlines()) if noted.exists() else set()
    known |= {f"{pid} {began}" for pid in running if (began := _began(pid))}
    alive = sorted(line for line in known if _began(int(line.split()[0])) == line.split()[1])
    if not alive:
        return None
    noted.write_text("\n".join(alive), "utf-8")
    pids = ", ".join(line.split()[0] for line in alive)
    why = (
        f"processes of this trial could not be ended and may still write ({pids}); "
        "once they have ended, the next start puts everything back"
    )
    outcome: Outcome = {kind: [] for kind in KINDS} | {"failed": [[session, why, ""]]}
    save(session, outcome)
    return outcome


def _began(pid: int) -> str:
    """When a process was started, in ticks since boot; "" if it is gone."""
    stat = stat_of(pid)
    return "" if stat is None or stat[0] in "ZX" else str(stat[2])


def last_sign(session: str) -> float:
    """When this session was last heard of, in seconds since the epoch: its logs, what it noted, the
    run's journal.
    """
    paths = SessionPaths(Path(session))
    files = [
        file
        for place in (paths.root, paths.written, paths.markers)
        if place.is_dir()
        for file in place.iterdir()
    ]
    files.append(paths.root.parent.parent / "journal.jsonl")
    return max((file.lstat().st_mtime for file in files if os.path.lexists(file)), default=0.0)


def training_began(session: str) -> float | None:
    """When the first backward call was made, in seconds since the epoch; None if there was none."""
    try:
        markers = SessionPaths(Path(session)).markers.glob("backward-*")
        return min((marker.stat().st_mtime for marker in markers), default=None)
    except OSError:
        return None


def written_since(path: str, limit: float | None) -> bool:
    """Whether the file ``path`` was written, or put there, after ``limit`` (seconds since the
    epoch; None: nobody can have).

    What is copied or unpacked may bring an old time of its own with it.
    """
    if limit is None or not os.path.lexists(path):
        return False
    stat = os.lstat(path)
    return max(stat.st_mtime, stat.st_ctime) > limit


def files_in(path: str) -> list[str]:
    if not os.path.isdir(path) or os.path.islink(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
