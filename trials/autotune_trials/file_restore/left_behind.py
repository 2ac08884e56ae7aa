"""What a session that has ended has left in its directory: its entries, when it was last heard of, and who of it still runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from autotune_trials.supervisor.procfs import stat_of

OUTCOME = "written.json"
RUNNING = "running"  # below the ledger: processes that could not be ended
SILENT_S = 120.0  # a job may write a file this long after anything else was heard of it

Outcome = dict[str, list[Any]]
Entry = dict[str, Any]


def nothing() -> Outcome:
    return {"restored": [], "removed": [], "prepared": [], "left": [], "unkept": [], "failed": []}


def outcome_of(session: str) -> Outcome | None:
    """What was put back before; None if that has not been done, or not all of it."""
    try:
        with open(os.path.join(session, OUTCOME), encoding="utf-8") as file:
            done: Outcome = json.load(file)
    except (OSError, ValueError):
        return None
    return None if done["failed"] else done


def save(session: str, outcome: Outcome) -> None:
    publish(os.path.join(session, OUTCOME), outcome)


def publish(path: str, content: Any) -> None:
    """Write ``content`` as JSON, whole or not at all, and to the disk."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextlib.contextmanager
def alone(session: str) -> Iterator[None]:
    """The warden of a tuner that was interrupted may be at it when the next run begins: one after the other."""
    folder = os.open(session, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def not_yet(session: str, running: Iterable[int]) -> Outcome | None:
    """What to say while processes of the session still run, which also the next call will want to know."""
    noted = os.path.join(session, "written", RUNNING)
    if not os.path.isdir(os.path.dirname(noted)):
        return None
    try:
        with open(noted, encoding="utf-8") as file:
            known = {line.strip() for line in file}
    except OSError:
        known = set()
    known |= {f"{pid} {began}" for pid in running if (began := _began(pid))}
    alive = sorted(line for line in known if _began(int(line.split()[0])) == line.split()[1])
    if not alive:
        return None
    with open(noted, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in alive)
    pids = ", ".join(line.split()[0] for line in alive)
    why = f"processes of this trial could not be ended and may still write ({pids}); once they have ended, the next start puts everything back"
    outcome = nothing()
    outcome["failed"].append([session, why, ""])
    save(session, outcome)
    return outcome


def _began(pid: int) -> str:
    """When a process was started, in ticks since boot; "" if it is gone."""
    stat = stat_of(pid)
    return "" if stat is None or stat[0] in "ZX" else str(stat[2])


def entries(ledger: str) -> list[Entry]:
    """What was noted of originals, the last first (see backups.py)."""
    try:
        names = os.listdir(ledger)
    except OSError:
        return []
    found = [_located(_entry(os.path.join(ledger, name)), ledger) for name in names if name.startswith(("e-", "u-"))]
    return sorted(found, key=lambda entry: -entry["at"])


def _located(entry: Entry, ledger: str) -> Entry:
    """With the place where its original lies now: the run may have been moved."""
    if "kept" in entry and os.path.basename(os.path.dirname(entry["kept"])) == "kept":
        entry["kept"] = os.path.join(ledger, "kept", os.path.basename(entry["kept"]))
    if not os.path.lexists(entry.get("kept", "")) and os.path.lexists(entry.get("beside", "")):
        entry["kept"] = entry["beside"]
    return entry


def _entry(file: str) -> Entry:
    """One claim. Of one that a power cut has spoilt nothing is known but where its original would be."""
    try:
        with open(file, encoding="utf-8") as claim:
            entry: Entry = json.load(claim)
    except ValueError:
        kept = os.path.join(os.path.dirname(file), "kept", os.path.basename(file)[2:])
        entry = {"kind": "spoilt", "path": file, "at": 0, "kept": kept}
    return {**entry, "file": file}


def last_sign(session: str) -> float:
    """When this session was last heard of, in seconds since the epoch: its logs, its claims, the run's journal."""
    places = [session, os.path.join(session, "written"), os.path.join(session, "crumbs")]
    files = [os.path.join(place, name) for place in places if os.path.isdir(place) for name in os.listdir(place)]
    files.append(os.path.join(os.path.dirname(os.path.dirname(session)), "journal.jsonl"))
    return max((os.lstat(file).st_mtime for file in files if os.path.lexists(file)), default=0.0)


def training_began(crumbs: str) -> float | None:
    """When the first backward call was made, in seconds since the epoch; None if there was none."""
    try:
        names = [name for name in os.listdir(crumbs) if name.startswith("backward-")]
        return min((os.stat(os.path.join(crumbs, name)).st_mtime for name in names), default=None)
    except OSError:
        return None


def written_since(path: str, limit: float | None) -> bool:
    """Whether anything at ``path`` was written, or put there, after ``limit`` (seconds since the epoch; None: nobody can have).

    What is copied or unpacked may bring an old time of its own with it.
    """
    if limit is None or not os.path.lexists(path):
        return False
    stats = map(os.lstat, files_in(path))
    return max((max(stat.st_mtime, stat.st_ctime) for stat in stats), default=0.0) > limit


def files_in(path: str) -> list[str]:
    if not os.path.isdir(path) or os.path.islink(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
