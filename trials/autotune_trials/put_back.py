"""After a trial: what it changed is put back, what it made is removed. The other half of ledger.py.

    entries, last first ──▶ put back ──▶ written.json: restored, removed, prepared, left, unkept, failed

Run by the tuner when a session ends; by the warden if the tuner is gone; by the next run over the same directory if both were
killed. That may be days later: what was written after the session's last sign of life is somebody else's then, and left alone.
An entry that has been dealt with is deleted. Of a directory that the job made only what is known to be the job's is removed: another
program may have put something there. What no longer is a file of ours is left, and told. Nothing is put back while a process of the
session is still alive: it would write on. Standard library only, and nothing of ours imported: the warden starts this file by
its name.

What the job prepares before it trains (a data set it downloads, tokenizes, unpacks) stays, or every trial would do it again: files
of a mebibyte and more in all that were written before the first backward call, not touched after it, and are no checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import glob
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

PREPARED_BYTES = 1 << 20  # less is a settings file or a log's first lines, and is made again in no time
OUTCOME = "written.json"
RUNNING = "running"  # below the ledger: processes that could not be ended
SILENT_S = 120.0  # a job may write a file this long after anything else was heard of it

Outcome = dict[str, list[Any]]


class Inside(NamedTuple):
    """What the job made inside directories that it made, by their names now."""

    files: set[str]
    gone: set[str]  # where it had a file, inside or not, and has removed or renamed it
    folders: set[str]  # names that once were: an empty directory is no loss
    may_stay: tuple[str, ...] = ()  # caches, and patterns the user gave: what lies there is not worth telling
    workdir: str = ""

    def to_tell(self, path: str) -> bool:
        names = [path[:at] for at in range(len(path) + 1) if at == len(path) or path[at] == os.sep]
        names += [os.path.relpath(name, self.workdir) for name in names if self.workdir and name.startswith(self.workdir + os.sep)]
        return not any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.may_stay)


def put_back(session: str, late: bool = False, running: Iterable[int] = ()) -> Outcome:
    """Put back what the session in this directory changed.

    Args:
        late: some time has passed since.
        running: processes of the session that could not be ended. As long as one of them lives nothing is put back; a later call may.

    Returns (and leaves in ``written.json``):
        restored: paths of the user's files that are again what they were
        removed: paths that were made and are gone
        prepared: paths that were made and stay, see the module
        left: paths where something was made, and what lies there now may be another program's
        unkept: [path, why] of files that were changed and could not be kept
        failed: [path, why, where the original lies] of files that could not be put back
    """
    with _alone(session):
        return _outcome_of(session) or _not_yet(session, running) or _put_back(session, late)


def _not_yet(session: str, running: Iterable[int]) -> Outcome | None:
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
    outcome = _nothing()
    outcome["failed"].append([session, why, ""])
    _save(session, outcome)
    return outcome


def _began(pid: int) -> str:
    """When a process was started, in ticks since boot; "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _nothing() -> Outcome:
    return {"restored": [], "removed": [], "prepared": [], "left": [], "unkept": [], "failed": []}


def _put_back(session: str, late: bool) -> Outcome:
    ledger = os.path.join(session, "written")
    outcome = _nothing()
    entries, inside = _entries(ledger), inside_made(ledger)
    checkpoints = {e["path"] for e in entries if e["checkpoint"]}
    trained = _training_began(os.path.join(session, "crumbs"))
    made = {e["path"] for e in entries if e["kind"] == "made"}
    moved = {e["to"] for e in entries if e["kind"] == "renamed"}
    gone = {e["path"] for e in entries if e["kind"] == "folder"} | {path for path in moved if not os.path.lexists(path)}
    limit = _last_sign(session) + SILENT_S if late else None
    theirs: list[str] = []  # where originals lie that could not be put back
    for entry in sorted(entries, key=lambda e: -e["at"]):
        try:
            if entry["kind"] != "made" or not _inside(entry["path"], made, moved):  # a directory stays or goes as a whole
                if limit is None or not _rewritten(entry, limit):
                    _require_none_of(theirs, entry)
                    _undo(entry, outcome, trained, checkpoints, gone, inside)
                elif entry["kind"] == "made":
                    outcome["left"].append(entry["path"])
            os.unlink(entry["file"])
        except OSError as error:
            why = f"{type(error).__name__}: {error.strerror or error}"
            where = entry["to"] if entry["kind"] == "renamed" else entry.get("kept", "")
            outcome["failed"].append([entry["path"], why, where])
            if where:
                theirs.append(where)
    changed = {path for path, *_ in outcome["unkept"] + outcome["failed"]}
    outcome["restored"] = sorted(p for p in set(outcome["restored"]) if p not in changed)
    _save(session, outcome)
    if not outcome["failed"]:
        shutil.rmtree(ledger, ignore_errors=True)
    return outcome


@contextlib.contextmanager
def _alone(session: str) -> Iterator[None]:
    """The warden of a tuner that was interrupted may be at it when the next run begins: one after the other."""
    folder = os.open(session, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def leftovers(run_dir: str) -> list[str]:
    """Sessions below ``run_dir`` whose changes were not put back, or not all: tuner and warden were both killed, the disk was full."""
    sessions = os.path.join(run_dir, "sessions")
    try:
        names = sorted(os.listdir(sessions), reverse=True)  # the last first, as within a session
    except OSError:
        return []
    found = [os.path.join(sessions, name) for name in names]
    return [s for s in found if os.path.isdir(os.path.join(s, "written"))]


# ---------------------------------------------------------------------------------------------------- one entry


def _require_none_of(originals: list[str], entry: dict[str, Any]) -> None:
    """Raises:
    OSError: what would be removed or replaced holds an original that could not be put back.
    """
    path = entry["path"]
    for original in originals:
        if entry["kind"] != "unkept" and (original == path or original.startswith(path + os.sep)):
            raise OSError(f"it holds what could not be put back: {original}")


def _undo(entry: dict[str, Any], outcome: Outcome, trained: float | None, checkpoints: set[str], gone: set[str], inside: Inside) -> None:
    kind, path = entry["kind"], entry["path"]
    if kind == "made":
        if not os.path.lexists(path):
            return
        if _prepared(path, trained, checkpoints):
            outcome["prepared"].append(path)
        elif os.path.isdir(path) and not os.path.islink(path):
            _remove_made(path, inside, outcome)
        elif path in inside.gone:
            outcome["left"].append(path)
        else:
            os.unlink(path)
            outcome["removed"].append(path)
    elif kind == "grown":
        _cut(path, entry, outcome)
    elif kind in ("moved", "linked", "copied"):
        _return_original(path, entry, outcome)
    elif kind == "renamed":
        _rename_back(path, entry, outcome, gone)
    elif kind == "folder":
        if not os.path.isdir(path):
            os.makedirs(path)
            os.chmod(path, entry["mode"])
            outcome["restored"].append(path)
    elif kind == "spoilt" and os.path.lexists(entry["kept"]):
        raise OSError("what was noted of it cannot be read; its original is still there")
    elif kind == "unkept":
        outcome["unkept"].append([path, entry["why"]])


def _rename_back(path: str, entry: dict[str, Any], outcome: Outcome, gone: set[str]) -> None:
    """``gone``: directories the job has removed, which have been made again for what was in them."""
    to = entry["to"]
    if not os.path.lexists(to):
        return
    if os.lstat(to).st_ino == entry["ino"] or to in gone:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.rename(to, path)
        os.chmod(path, entry["mode"])
        outcome["restored"].append(path)
    elif not os.path.lexists(path):  # else it was never renamed: the job's own call has failed
        raise OSError("another directory is where it was renamed to")


def _return_original(path: str, entry: dict[str, Any], outcome: Outcome) -> None:
    kept = entry["kept"]
    if not os.path.lexists(kept):  # never taken away: the job was killed before, or it is told as "unkept"
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)  # what the job made in it is gone by now
    if os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(kept)):
        os.unlink(kept)  # rename(2) does nothing where both names are one file
        return
    if not _is_its_copy(kept, path, entry):
        try:
            os.replace(kept, path)
            outcome["restored"].append(path)
            return
        except OSError as error:  # a directory that may not be written to, or a mount point: what is in the file is put back
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EXDEV, errno.EBUSY):
                raise
    shutil.copyfile(kept, path, follow_symlinks=False)
    shutil.copystat(kept, path, follow_symlinks=False)
    os.unlink(kept)
    outcome["restored"].append(path)


def _is_its_copy(kept: str, path: str, entry: dict[str, Any]) -> bool:
    """Whether the user's own file still lies at ``path``, with other names or another owner, which a copy of it would not have."""
    if not os.path.lexists(path) or os.path.islink(path):
        return False
    now, copy = os.lstat(path), os.lstat(kept)
    return now.st_ino == entry["ino"] and (now.st_nlink > 1 or (now.st_uid, now.st_gid) != (copy.st_uid, copy.st_gid))


def _cut(path: str, entry: dict[str, Any], outcome: Outcome) -> None:
    stat = os.stat(path)
    if stat.st_size > entry["size"]:
        os.truncate(path, entry["size"])
        os.utime(path, ns=(stat.st_atime_ns, entry["mtime_ns"]))
        outcome["restored"].append(path)
    elif stat.st_size < entry["size"]:
        raise OSError(f"it was {entry['size']} bytes long and is {stat.st_size} now")


def _prepared(path: str, trained: float | None, checkpoints: set[str]) -> bool:
    """Whether what lies at ``path`` was prepared for training rather than made by it."""
    if trained is None:
        return False
    total = 0
    for file in _files(path):
        stat = os.lstat(file)
        if file in checkpoints or stat.st_mtime >= trained:
            return False
        total += stat.st_size
    return total >= PREPARED_BYTES


def _inside(path: str, made: set[str], moved: set[str]) -> bool:
    """Whether ``path`` is in a directory that was made, and not in one of the user's that was only renamed to there."""
    folder = os.path.dirname(path)
    while folder not in moved and folder != os.path.dirname(folder):
        if folder in made:
            return True
        folder = os.path.dirname(folder)
    return False


def _files(path: str) -> list[str]:
    if not os.path.isdir(path) or os.path.islink(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def _remove_made(made: str, inside: Inside, outcome: Outcome) -> None:
    """Remove the job's files in a directory that it made, and the directories this empties."""
    left = []
    for folder, folders, names in os.walk(made, topdown=False):
        for name in names + [f for f in folders if os.path.islink(os.path.join(folder, f))]:
            path = os.path.join(folder, name)
            if path in inside.files:
                os.unlink(path)
            elif inside.to_tell(path):
                left.append(path)
        if folder == made or folder in inside.folders:
            with contextlib.suppress(OSError):  # something is left in it
                os.rmdir(folder)
    if os.path.lexists(made):
        outcome["left"] += sorted(left)
    else:
        outcome["removed"].append(made)


# ---------------------------------------------------------------------------------------------------- files


def inside_made(ledger: str) -> Inside:
    """What every process of the job has logged, in the order in which it happened (see Ledger._log)."""
    files: set[str] = set()
    gone: set[str] = set()
    folders: set[str] = set()
    for _, what, path, to in sorted(_records(ledger)):
        if what == "+":
            files.add(path)
            gone.discard(path)
        elif what == "d":
            folders.add(path)
        elif what == "-":
            files.discard(path)
            gone.add(path)
        elif what in (">", "+>"):
            known = path in files or what == "+>"
            files -= {path, to}
            gone.discard(to)
            gone.add(path)
            if known:
                files.add(to)
        elif what == "d>":
            moved = {name for name in files if name.startswith(path + os.sep)}
            files = files - moved | {to + name[len(path) :] for name in moved}
            folders |= {to + name[len(path) :] for name in folders if name == path or name.startswith(path + os.sep)}
    return Inside(files, gone, folders, *_may_stay(ledger))


def _may_stay(ledger: str) -> tuple[tuple[str, ...], str]:
    """Patterns of what the session does not look after, and the working directory (see Places.dump)."""
    try:
        with open(os.path.join(ledger, "places"), encoding="utf-8", errors="surrogateescape") as file:
            rows = [row.partition("=")[::2] for row in file.read().split("\0")]
    except OSError:
        return (), ""
    patterns = [glob.escape(path) for kind, path in rows if kind in ("own", "cache", "library")]
    patterns += [os.path.normpath(path) for kind, path in rows if kind == "keep"]
    return tuple(patterns), dict(rows).get("workdir", "")


def _records(ledger: str) -> Iterator[tuple[int, str, str, str]]:
    """(when, what, path, to) of all logs; of one that a power cut has spoilt, what comes before that."""
    for name in os.listdir(ledger) if os.path.isdir(ledger) else ():
        if not name.startswith("i-"):
            continue
        with open(os.path.join(ledger, name), "rb") as file:
            fields = file.read().split(b"\0")
        for at in range(0, len(fields) - 4, 4):
            if not fields[at].isdigit():
                break
            yield int(fields[at]), fields[at + 1].decode(), os.fsdecode(fields[at + 2]), os.fsdecode(fields[at + 3])


def _entries(ledger: str) -> list[dict[str, Any]]:
    found = []
    try:
        names = os.listdir(ledger)
    except OSError:
        return []
    for name in names:
        if name.startswith(("e-", "u-")):
            entry = _entry(os.path.join(ledger, name))
            if "kept" in entry and os.path.basename(os.path.dirname(entry["kept"])) == "kept":  # the run may have been moved
                entry["kept"] = os.path.join(ledger, "kept", os.path.basename(entry["kept"]))
            if not os.path.lexists(entry.get("kept", "")) and os.path.lexists(entry.get("beside", "")):
                entry["kept"] = entry["beside"]
            found.append(entry)
    return found


def _entry(file: str) -> dict[str, Any]:
    """One claim. Of one that a power cut has spoilt nothing is known but where its original would be."""
    try:
        with open(file, encoding="utf-8") as claim:
            entry: dict[str, Any] = json.load(claim)
    except ValueError:
        kept = os.path.join(os.path.dirname(file), "kept", os.path.basename(file)[2:])
        entry = {"kind": "spoilt", "path": file, "at": 0, "checkpoint": False, "kept": kept}
    return {**entry, "file": file}


def _last_sign(session: str) -> float:
    """When this session was last heard of, in seconds since the epoch: its logs, its claims, the run's journal."""
    places = [session, os.path.join(session, "written"), os.path.join(session, "crumbs")]
    files = [os.path.join(place, name) for place in places if os.path.isdir(place) for name in os.listdir(place)]
    files.append(os.path.join(os.path.dirname(os.path.dirname(session)), "journal.jsonl"))
    return max((os.lstat(file).st_mtime for file in files if os.path.lexists(file)), default=0.0)


def _rewritten(entry: dict[str, Any], limit: float) -> bool:
    """Whether what lies there now was written after the session had ended.

    Raises:
        OSError: it was, and the original is still kept: a person has to choose.
    """
    path = entry["path"]
    if entry["kind"] not in ("made", "moved", "linked", "copied", "grown") or not os.path.lexists(path):
        return False
    if max((_touched(file) for file in _files(path)), default=0.0) <= limit:
        return False
    if os.path.lexists(entry.get("kept", "")):
        raise OSError("it has been written again since; to keep it as it is now, delete the original")
    return True


def _touched(file: str) -> float:
    """When ``file`` was last written or put there: what is copied or unpacked may bring an old time of its own with it."""
    stat = os.lstat(file)
    return max(stat.st_mtime, stat.st_ctime)


def _training_began(crumbs: str) -> float | None:
    """When the first backward call was made, in seconds since the epoch; None if there was none."""
    try:
        names = [name for name in os.listdir(crumbs) if name.startswith("backward-")]
        return min((os.stat(os.path.join(crumbs, name)).st_mtime for name in names), default=None)
    except OSError:
        return None


def _outcome_of(session: str) -> Outcome | None:
    try:
        with open(os.path.join(session, OUTCOME), encoding="utf-8") as file:
            done: Outcome = json.load(file)
    except (OSError, ValueError):
        return None
    return None if done["failed"] else done


def _save(session: str, outcome: Outcome) -> None:
    temporary = os.path.join(session, f".{OUTCOME}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(outcome, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(session, OUTCOME))


if __name__ == "__main__":
    put_back(sys.argv[1], running=map(int, sys.argv[2:]))
