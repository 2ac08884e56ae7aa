"""What a session that has ended has left in its directory: when it was last heard of, and who of it
still runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune_trials.paths import SessionPaths, publish
from autotune_trials.supervisor.procfs import stat_of

RUNNING = "running"  # below the ledger: processes that could not be ended
LAST_SIGN = "last-sign"  # below the ledger: as old as what was last heard of the session
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
    """When this session was last heard of, in seconds since the epoch: its files, the run's
    journal.

    It is noted: who puts things back later, and asks again, writes files of the session as well.
    """
    paths = SessionPaths(Path(session))
    noted = paths.written / LAST_SIGN
    if not noted.exists():
        # no directories, nor what is kept: somebody may have taken an original from there
        files = [file for folder in (paths.root, paths.written) for file in folder.iterdir()]
        files += [*paths.markers.glob("*"), paths.root.parent.parent / "journal.jsonl"]
        last = max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
        noted.touch()
        os.utime(noted, (last, last))
    return noted.stat().st_mtime


def training_began(session: str) -> float | None:
    """When the first backward call was made, in seconds since the epoch; None if there was none."""
    try:
        markers = SessionPaths(Path(session)).markers.glob("backward-*")
        return min((marker.stat().st_mtime for marker in markers), default=None)
    except OSError:
        return None


def files_in(path: str) -> list[str]:
    if not os.path.isdir(path) or os.path.islink(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
