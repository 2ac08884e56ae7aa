"""What a trial writes outside its own directory, noted before it happens, so that it can be put
back (restore.py).

    the job is about to …                if the session has made it   if it is anybody else's
    make a file or directory             noted as made                –
    overwrite, change or append to       –                            kept
    remove or replace a file             no longer noted              kept
    rename or link it                    the new name is noted        kept; the new name is noted
    remove a directory, change a mode    no longer noted              its mode is noted

Renaming a directory is renaming all that is in it. Two questions decide: **has this session made
it** (log.py), and **is it looked after** (scope.py). Only what the session has made is removed in
the end; what it has not made is kept wherever it is looked after, also in directories that the
session has made, and where it is moved or linked from elsewhere to where it is looked after.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from autotune_trials.file_restore.backups import COPY_BYTES, Backups, CannotKeep, cannot_keep
from autotune_trials.file_restore.log import Log, Made
from autotune_trials.file_restore.scope import PathScope, below


class Ledger:
    """Of one process. Its methods are called before the job does what they are named after; paths
    are absolute and resolved.

    Raises:
        CannotKeep: the job's own call must fail with this.
        OSError: something new could not be noted; the job's own call will go on.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        with open(
            os.path.join(directory, "places"), encoding="utf-8", errors="surrogateescape"
        ) as file:
            self.scope = PathScope.load(file.read()).with_caches(sys.prefix, sys.base_prefix)
        self._log, self._backups = Log(directory), Backups(directory)
        os.register_at_fork(after_in_child=self._log.begin_again)

    # ------------------------------------------------------------------ what the job is about to do

    def opens(self, path: str, flags: int, checkpoint: bool = False) -> None:
        """Open ``path`` for writing with ``flags`` of os.open."""
        with self._log.alone():
            stat = _lstat(path)
            if stat is None:
                if flags & os.O_CREAT:
                    self._makes(path, checkpoint=checkpoint)
            elif _opens_old(path, stat, flags):
                if self._is_theirs(path, stat, checkpoint):
                    self._keep(path, stat)
                if (stat.st_dev, stat.st_ino) in self._log.inodes:
                    self._spare(path, stat, flags, checkpoint)

    def removes(self, path: str) -> None:
        """Remove the file ``path``."""
        self._require_not_ours(below(path, (self.directory,)), path)
        with self._log.alone():
            stat = _lstat(path)
            if stat is not None and not _is_directory(stat):
                self._loses_its_name(path, stat)

    def renames(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target``. Where that is another disk, the job will copy it there
        and remove it here.
        """
        ours = below(source, (self.directory,)) or below(self.directory, (source,))
        self._require_not_ours(ours, source)
        with self._log.alone():
            stat, there = _lstat(source), _lstat(target)
            if stat is None:
                return
            fails = _renaming_fails(stat, there, source, target)
            if there is not None and not fails:
                self._loses_its_name(target, there)
            held = any(map(self.scope.holds, (source, target, os.path.realpath(target))))
            for path, found in _tree(source, stat):
                known = self._made(path, found) or (held and self._keep(path, found))
                if known and not fails:
                    new = target + path[len(source) :]
                    self._log.note("renamed", path, to=new, **self._about_new(new, path, found))

    def links(self, source: str, target: str) -> None:
        """Give the file ``source`` a second name."""
        with self._log.alone():
            stat = _lstat(source)
            if stat is None or os.path.lexists(target):
                return
            held = self.scope.holds(source) or self.scope.holds(target)
            if below(source, ("/proc",)):  # one that has no name yet (O_TMPFILE)
                self._makes(target)
            elif self._made(source, stat) or (held and self._keep(source, stat)):
                self._log.note("made", target, **self._about_new(target, source, stat))

    def makes(self, path: str, folder: bool = False) -> None:
        """Make something at ``path``, if nothing is there."""
        if not os.path.lexists(path):
            with self._log.alone():
                self._makes(path, folder=folder)

    def removes_directory(self, path: str) -> None:
        """Remove the directory ``path``, if it is empty."""
        stat = _lstat(path)
        if stat is not None and _is_directory(stat) and not os.listdir(path):
            with self._log.alone():
                self._loses_its_name(path, stat)

    def changes_mode(self, path: str) -> None:
        """Change the mode or the times of ``path``."""
        with self._log.alone():
            stat = _lstat(path)
            if stat is not None and self._is_theirs(path, stat):
                self._keep(path, stat)

    # ------------------------------------------------------------------ how

    def _makes(self, path: str, checkpoint: bool = False, folder: bool = False) -> None:
        # in vain where its directory is not there: who makes both later is somebody else
        if not self._own(path) and os.path.isdir(os.path.dirname(path)):
            stays = not self.scope.holds(path, checkpoint) and path not in self._log.kept
            self._log.note("made", path, folder=folder, stays=stays, checkpoint=checkpoint)

    def _about_new(self, path: str, old: str, stat: os.stat_result) -> dict[str, Any]:
        """What to note of ``path``, a new name of what lies at ``old`` and is the session's, or
        kept.
        """
        kept = old in self._log.kept or (stat.st_dev, stat.st_ino) in self._log.inodes
        made = self._log.made.get(old, Made())._replace(folder=_is_directory(stat))
        stays = not kept and not self.scope.holds(path, made.checkpoint)
        return made._replace(inode=0 if made.folder else stat.st_ino, stays=stays)._asdict()

    def _keep(self, path: str, stat: os.stat_result) -> bool:
        """Keep a file or directory that somebody else has made; False if another one is kept by
        this name.
        """
        known, folder = self._log.kept.get(path), _is_directory(stat)
        if known is None:
            # by another name before
            about = self._log.inodes.get((stat.st_dev, stat.st_ino)) or _about(stat)
            try:
                self._log.note("kept", path, **about)
            except OSError as error:
                raise cannot_keep(path, error) from error
        elif not folder and (known["dev"], known["ino"]) != (stat.st_dev, stat.st_ino):
            if path not in self._log.unkept:
                why = (
                    "written again by another program after the trial had changed it; what it was"
                    " before is put back"
                )
                self._log.note("unkept", path, why=why)
            return False
        if not folder:
            self._backups.keep(path, stat)
        return True

    def _spare(self, path: str, stat: os.stat_result, flags: int, checkpoint: bool) -> None:
        """A file that is kept is about to be opened for writing: what it was must not be lost with
        that.
        """
        anew = flags & os.O_TRUNC and flags & os.O_CREAT
        # what may be read as well (a+) may be cut and written anew: a table under a lock, say
        rewrites = flags & os.O_RDWR and stat.st_size <= COPY_BYTES
        if not anew and (stat.st_size == 0 or (flags & os.O_APPEND and not rewrites)):
            return  # it is cut to its length
        self._log.flush()
        self._backups.flush()
        if anew and _unlinked(path):  # the kept one has its contents alone
            self._makes(path, checkpoint)
        elif why := self._backups.keep_contents(path, stat):
            self._log.note("unkept", path, why=why)

    def _loses_its_name(self, path: str, stat: os.stat_result) -> None:
        if self._is_theirs(path, stat):
            self._keep(path, stat)
        if path in self._log.made:
            self._log.note("gone", path)

    # ------------------------------------------------------------------ whose it is, and where

    def _is_theirs(self, path: str, stat: os.stat_result, checkpoint: bool = False) -> bool:
        return self.scope.holds(path, checkpoint) and not self._made(path, stat)

    def _made(self, path: str, stat: os.stat_result) -> bool:
        return self._own(path) or self._log.has_made(path, stat)

    def _own(self, path: str) -> bool:
        return below(path, self.scope.own)

    def _require_not_ours(self, ours: bool, path: str) -> None:
        if ours:
            import errno

            text = "autotune keeps this until the trial has ended (--run-dir names another place)"
            raise CannotKeep(errno.EPERM, text, path)


def _lstat(path: str) -> Any:
    try:
        return os.lstat(path)
    except (OSError, ValueError):
        return None


def _about(stat: os.stat_result) -> dict[str, Any]:
    found = {
        "dev": stat.st_dev,
        "ino": stat.st_ino,
        "mode": stat.st_mode & 0o7777,
        "folder": _is_directory(stat),
    }
    return found | {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _unlinked(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:  # a directory that may not be written to, a mount point
        return False
    return True


def _opens_old(path: str, stat: os.stat_result, flags: int) -> bool:
    """Whether opening will succeed and find the file that is there."""
    regular, new = stat.st_mode & 0o170000 == 0o100000, flags & os.O_EXCL and flags & os.O_CREAT
    return regular and not new and os.access(path, os.W_OK)


def _renaming_fails(stat: os.stat_result, there: Any, source: str, target: str) -> bool:
    """Whether renaming will fail, or do nothing, as far as one can tell: another disk, something in
    the way, itself.
    """
    parents = os.path.dirname(source), os.path.dirname(target)
    folder = _lstat(parents[1])
    if folder is None or folder.st_dev != stat.st_dev:
        return True
    if not all(os.access(parent, os.W_OK | os.X_OK) for parent in parents):
        return True
    if there is None:
        return below(target, (source,))
    if _is_directory(stat):
        return not _is_directory(there) or bool(os.listdir(target))
    return _is_directory(there) or os.path.samestat(there, stat)


def _tree(path: str, stat: os.stat_result) -> Iterator[tuple[str, os.stat_result]]:
    """What is at ``path``, and all that is in it."""
    yield path, stat
    for above, folders, files in os.walk(path) if _is_directory(stat) else ():
        for name in (*folders, *files):
            found = _lstat(os.path.join(above, name))
            if found is not None:
                yield os.path.join(above, name), found


def _is_directory(stat: os.stat_result) -> bool:
    return stat.st_mode & 0o170000 == 0o040000
