"""After a trial, removes the files it made and restores those it changed. The other half of
recorder.py.

    1  remove the files that the session has made, and directories of its own that this empties
    2  recreate directories that it has removed or renamed
    3  restore files that it has changed, replaced, removed or renamed
    4  write the outcome to written.json: restored, removed, prepared, left, unkept, failed

Runs in the tuner when a session ends, in the supervisor if the tuner is gone, and in the next run
over the same directory if both were killed. Every step may be interrupted and repeated: the ledger
is deleted only once everything is done. Files not known to be the session's are left and reported.
Nothing is restored while a process of the session is alive, since it could write again.

Data that the job prepares before training (downloads, tokenizes, unpacks) stays, or every trial
would prepare it again: files of at least 1 MiB in total that were written before the first backward
call, not touched after it, and are no checkpoint. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_IMODE, S_ISREG
from typing import Any

from autotune_trials.file_restore import left_behind
from autotune_trials.file_restore.backups import BESIDE, Backups
from autotune_trials.file_restore.left_behind import SILENT_S, Outcome, files_in
from autotune_trials.file_restore.log import Log, Made
from autotune_trials.file_restore.scope import PathScope, above, below
from autotune_trials.paths import SessionPaths, sessions_of

# anything smaller is a settings file or the start of a log, quickly made again
PREPARED_BYTES = 1 << 20
ASIDE = ".during-trial"  # suffix for files of other programs in the place of a file of the user


def put_back(session: str, late: bool = False, running: Iterable[int] = ()) -> Outcome:
    """Undo the file changes of the session in this directory.

    Args:
        late: the session ended some time ago; files written since belong to other programs.
        running: processes of the session that could not be killed. While one of them is alive,
            nothing is restored; a later call can do it.

    Returns (and saves in ``written.json``):
        restored: paths of the user's files that were restored
        removed: paths that the session made and that were removed
        prepared: paths that the session made and that stay
        left: paths that other programs wrote where the session had made something
        unkept: [path, why] of files that were changed and could not be kept
        failed: [path, why, path of the original] of files that could not be restored
        crossed: paths that one of two sessions with this ledger wrote and the other used, and
            files of the user's that one of them removed or renamed
    """
    ledger = str(SessionPaths(Path(session)).written)
    if os.path.islink(ledger):
        return _leave_to_owner(ledger, late, running)
    log = Log(ledger)
    # an interrupted tuner's supervisor may still be restoring when the next run begins
    with log.alone():
        done = (
            left_behind.outcome_of(session)
            or left_behind.not_yet(session, running, late)
            or _Restoring(session, log, late).run()
        )
        if not done["failed"]:
            Backups(ledger).clear(log.kept)
            shutil.rmtree(ledger, ignore_errors=True)
        return done


def _leave_to_owner(link: str, late: bool, running: Iterable[int]) -> Outcome:
    """A session that shares the ledger of another one has ended: that one restores everything.

    If it has ended already, and was waiting for this one, it is done now.
    """
    ledger = os.path.realpath(link)
    owner = os.path.dirname(ledger)
    with Log(ledger).alone():
        os.unlink(link)
        waiting = left_behind.not_yet(owner, running, late)
        owner_ended = SessionPaths(Path(owner)).outcome.exists()
    if owner_ended and waiting is None:
        return put_back(owner, late)
    return waiting or {kind: [] for kind in left_behind.KINDS}


def leftovers(run_dir: str) -> list[str]:
    """Sessions of ``run_dir`` not (fully) restored: tuner and supervisor were both killed, or the
    disk was full.
    """
    last_first = reversed(sessions_of(Path(run_dir)))
    return [str(session) for session in last_first if SessionPaths(session).written.is_dir()]


class _Restoring:
    def __init__(self, session: str, log: Log, late: bool) -> None:
        self._session, self._log = session, log
        ledger = str(SessionPaths(Path(session)).written)
        self._backups = Backups(ledger)
        self._scope: PathScope | None = None
        with contextlib.suppress(OSError, KeyError, ValueError):  # missing or damaged
            self._scope = PathScope.read(ledger)
        self._limit = left_behind.last_sign(session) + SILENT_S if late else None
        self._outcome: Outcome = {kind: [] for kind in left_behind.KINDS}
        self._going = {
            path: made for path, made in self._log.made.items() if self._goes(path, made)
        }
        self._prepared: set[tuple[int, int]] = set()  # files that stay, by device and inode

    def run(self) -> Outcome:
        tops = {top for path in self._going if os.path.lexists(top := self._top(path))}
        tops -= self._log.kept.keys()
        self._spare_prepared(tops)
        self._remove()
        self._make_folders()
        for path, entry in self._log.kept.items():
            if not entry["folder"]:
                self._try(path, entry)
        self._restore_modes()
        self._tell(tops)
        left_behind.save(self._session, self._outcome)
        return self._outcome

    # ------------------------------------------------------------------ removing

    def _goes(self, path: str, made: Made) -> bool:
        if self._scope is not None and (self._scope.kept(path) or below(path, self._scope.own)):
            return False
        compiled = "__pycache__" in path  # removed if the directory of its modules is
        return not made.stays or (compiled and any(self._is_going(f) for f in above(path)))

    def _holds(self, path: str) -> bool:
        return self._scope is None or self._scope.holds(path)

    def _is_going(self, folder: str) -> bool:
        made = self._log.made.get(folder)
        return made is not None and made.folder and not made.stays

    def _top(self, path: str) -> str:
        """The topmost directory above ``path`` to be removed; ``path`` itself if there is none."""
        folder = os.path.dirname(path)
        while folder in self._going and self._going[folder].folder:
            path, folder = folder, os.path.dirname(folder)
        return path

    def _spare_prepared(self, tops: set[str]) -> None:
        """Exclude data prepared for training from removal."""
        trained = left_behind.training_began(self._session)
        checkpoints = {path for path, made in self._going.items() if made.checkpoint}
        stay = tuple(
            top for top in sorted(tops) if trained and _is_prepared(top, trained, checkpoints)
        )
        self._outcome["prepared"] += stay
        self._prepared = {_key(file) for top in stay for file in files_in(top)}
        self._going = {path: made for path, made in self._going.items() if not below(path, stay)}

    def _remove(self) -> None:
        for path, made in self._going.items():
            if not made.folder and os.path.lexists(path) and not self._is_back(path):
                if not self._log.has_made(path, os.lstat(path)) or self._is_newer(path):
                    self._outcome["left"].append(path)
                else:
                    with self._errors_reported(path):
                        os.unlink(path)
        folders = (path for path, made in self._going.items() if made.folder)
        for path in sorted(folders, reverse=True):
            with contextlib.suppress(OSError):  # already gone, or not empty
                os.rmdir(path)

    def _is_back(self, path: str) -> bool:
        """Whether the user's own file is back at ``path``, where the session had made one."""
        entry = self._log.kept.get(path)
        return entry is not None and not entry["folder"] and _is_it(path, entry)

    def _is_newer(self, path: str) -> bool:
        """Whether another program may have written ``path`` after the session's end.

        The ctime counts too, since copied or unpacked files may carry an old mtime.
        """
        if self._limit is None or not os.path.lexists(path):
            return False
        stat = os.lstat(path)
        return max(stat.st_mtime, stat.st_ctime) > self._limit

    # ------------------------------------------------------------------ restoring

    def _make_folders(self) -> None:
        for path in sorted(path for path, entry in self._log.kept.items() if entry["folder"]):
            if not os.path.isdir(path):
                with self._errors_reported(path):
                    os.makedirs(path)
                    self._outcome["restored"].append(path)

    def _restore_modes(self) -> None:
        """Restore the modes of directories, after their contents."""
        for path, entry in sorted(self._log.kept.items(), reverse=True):
            if entry["folder"] and os.path.isdir(path):
                with self._errors_reported(path):
                    _set_mode(path, entry["mode"])

    def _try(self, path: str, entry: dict[str, Any]) -> None:
        original = self._backups.original(path, entry)
        if not original:
            return  # it was never changed, or the user has deleted the original
        if (entry["dev"], entry["ino"]) in self._prepared and not self._holds(path):
            return  # prepared data, unpacked out of scope and then moved into place
        with self._errors_reported(path, original):
            if self._is_newer(path) and not _is_unchanged(path, entry):
                raise OSError(
                    "it was modified after the session ended; to keep the current version, delete"
                    " the saved original"
                )
            self._restore(path, entry, original)
            self._outcome["restored"].append(path)

    def _restore(self, path: str, entry: dict[str, Any], original: str) -> None:
        contents = self._backups.contents(entry)
        if os.path.exists(contents):
            _write(original, contents, entry)
        is_copy = _key(original) != (entry["dev"], entry["ino"])
        if is_copy and _is_it(path, entry):
            _write(path, original, entry)
        elif not (os.path.lexists(path) and _key(path) == _key(original)):
            self._make_way(path)
            _put(path, original, is_copy)
        _as_it_was(path, entry)

    def _make_way(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path):
            os.rmdir(path)
        elif os.path.lexists(path):
            os.rename(path, list(_asides(path))[-1])

    # ------------------------------------------------------------------ reporting

    @contextlib.contextmanager
    def _errors_reported(self, path: str, original: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{type(error).__name__}: {error.strerror or error}"
            self._outcome["failed"].append([path, why, original])

    def _tell(self, tops: set[str]) -> None:
        outcome = self._outcome
        for path in self._backups.nameless(self._log.kept.values()):
            outcome["failed"].append(
                [path, "its log entry is unreadable; the original is still here", path]
            )
        outcome["crossed"] = sorted(self._log.crossed)
        outcome["unkept"] += [[path, why] for path, why in self._log.unkept.items()]
        trouble = {path for path, *_ in outcome["unkept"] + outcome["failed"]}
        folders = (
            path for path, made in self._going.items() if made.folder and os.path.isdir(path)
        )
        strangers = {*outcome["left"], *(file for folder in folders for file in files_in(folder))}
        strangers -= self._log.kept.keys() | trouble
        strangers = set(filter(self._holds, strangers))
        asides = {aside for path in self._log.kept for aside in list(_asides(path))[:-1]}
        outcome["left"] = sorted(strangers | asides)
        outcome["removed"] = sorted(top for top in tops if not os.path.lexists(top))
        outcome["restored"] = sorted({path for path in outcome["restored"] if path not in trouble})


def _asides(path: str) -> Iterator[str]:
    """Names for moving another program's file out of the way: those taken, then a free one."""
    aside = path + ASIDE
    while os.path.lexists(aside):
        yield aside
        aside += "-"
    yield aside


def _is_prepared(path: str, trained: float, checkpoints: set[str]) -> bool:
    """Whether ``path`` was prepared for training rather than produced by it."""
    total = 0
    for file in files_in(path):
        stat = os.lstat(file)
        if file in checkpoints or stat.st_mtime >= trained:
            return False
        total += stat.st_size
    return total >= PREPARED_BYTES


def _key(path: str) -> tuple[int, int]:
    stat = os.lstat(path)
    return stat.st_dev, stat.st_ino


def _is_it(path: str, entry: dict[str, Any]) -> bool:
    """Whether ``path`` is the very file of ``entry`` (same device and inode)."""
    return os.path.lexists(path) and _key(path) == (entry["dev"], entry["ino"])


def _is_unchanged(path: str, entry: dict[str, Any]) -> bool:
    """Whether ``path`` is as it was, e.g. restored before: only its ctime is new."""
    stat = os.lstat(path)
    return _is_it(path, entry) and (stat.st_size, stat.st_mtime_ns) == (
        entry["size"],
        entry["mtime_ns"],
    )


def _put(path: str, original: str, is_copy: bool) -> None:
    """Move the original to ``path`` atomically; its second name stays until everything is done."""
    new = f"{path}{BESIDE}back"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    if is_copy:
        shutil.copy2(original, new, follow_symlinks=False)
    else:
        os.link(original, new, follow_symlinks=False)
    os.replace(new, path)


def _write(path: str, contents: str, entry: dict[str, Any]) -> None:
    if os.path.islink(path):
        return  # a link's contents cannot be changed in place
    os.chmod(path, entry["mode"] | 0o200)
    shutil.copyfile(contents, path)


def _as_it_was(path: str, entry: dict[str, Any]) -> None:
    """Restore length, mode and mtime."""
    stat = os.lstat(path)
    if not S_ISREG(stat.st_mode):
        return
    if stat.st_size < entry["size"]:
        raise OSError(f"it was {entry['size']} bytes long and is now {stat.st_size}")
    if stat.st_size > entry["size"]:
        os.chmod(path, entry["mode"] | 0o200)
        os.truncate(path, entry["size"])
    _set_mode(path, entry["mode"])
    if os.lstat(path).st_mtime_ns != entry["mtime_ns"]:
        os.utime(path, ns=(stat.st_atime_ns, entry["mtime_ns"]))


def _set_mode(path: str, mode: int) -> None:
    if S_IMODE(os.lstat(path).st_mode) != mode:  # chmod fails on another user's file
        os.chmod(path, mode)


def main() -> None:
    """Entry point for the supervisor; arguments: session, pids that could not be killed."""
    put_back(sys.argv[1], running=map(int, sys.argv[2:]))


__all__ = ["Outcome", "leftovers", "main", "put_back"]
