"""Logs what a trial is about to write outside its own directory, so that restore.py can undo it.

    the job is about to …                made by the session    not made by it
    make a file or directory             logged as made         –
    overwrite, change or append to       –                      kept
    remove or replace a file             logged as gone         kept
    rename or link it                    new name logged        kept, new name logged
    remove a directory, change a mode    logged as gone         its mode is logged

Renaming a directory counts as renaming everything in it. Two questions decide: **has this session
made the file** (log.py), and **is the path in scope** (scope.py). Only files that the session has
made are removed at the end. Other files are kept wherever they are in scope, also inside
directories that the session has made, and if they are moved or linked into the scope.

Two sessions that run at the same time share a ledger. Then it is also logged which of them has
written a file, and whether the other reads, moves or removes it, or one takes a file of the user's
away: what the other does is then no longer its own.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from stat import S_IMODE, S_ISDIR, S_ISREG
from typing import Any

from autotune_trials.file_restore.backups import COPY_BYTES, Backups, CannotKeep, cannot_keep
from autotune_trials.file_restore.log import BOTH, SHARED, Log, Made
from autotune_trials.file_restore.scope import PathScope, below, resolved

APPENDED_BYTES = 64 << 20  # of a file that is opened only to append to: such as a log


class Recorder:
    """Records what one process does. Each method is called before the job's operation of that name,
    with absolute, resolved paths.

    Raises:
        CannotKeep: the job's own call must fail with this.
        OSError: a new file could not be logged; the job's own call proceeds.
    """

    def __init__(self, directory: str) -> None:
        self.directory = os.path.realpath(directory)
        self.scope = PathScope.read(directory).with_caches(sys.prefix, sys.base_prefix)
        self._log, self._backups = Log(directory), Backups(directory)
        os.register_at_fork(after_in_child=self._log.begin_again)
        shared = os.path.exists(os.path.join(directory, SHARED))
        # this session, if another one shares the ledger
        self.session = os.path.dirname(directory) if shared else ""

    # ------------------------------------------------------------------ what the job is about to do

    def opens(self, path: str, flags: int, checkpoint: bool = False) -> None:
        """The job opens ``path`` for writing with these os.open ``flags``."""
        with self._log.alone():
            stat = _lstat(path)
            if stat is None:
                if not flags & os.O_CREAT:
                    return
                self._makes(path, checkpoint=checkpoint)
            elif not _opens_old(path, stat, flags):
                return
            else:
                if self._is_theirs(path, stat, checkpoint):
                    self._keep(path, stat)
                if (stat.st_dev, stat.st_ino) in self._log.inodes:
                    self._spare(path, stat, flags, checkpoint)
            anew = bool(flags & os.O_TRUNC)
            if flags & os.O_RDWR and not anew:
                self._note_crossing(path)
            self._note_writer(path, checkpoint, anew)

    def reads(self, path: Any) -> None:
        """The job opens ``path``, as it calls it, for reading: jobs read far more than they write."""
        name = os.path.basename(os.fsdecode(path))
        if self._log.has_news() or name in self._log.names or os.path.islink(path):
            with self._log.alone():
                self._note_crossing(resolved(path))

    def removes(self, path: str) -> None:
        self._require_not_ours(below(path, (self.directory,)), path)
        with self._log.alone():
            stat = _lstat(path)
            if stat is not None and not S_ISDIR(stat.st_mode):
                theirs = self._is_theirs(path, stat)
                self._loses_its_name(path, stat)
                self._note_crossing(path, theirs)

    def renames(self, source: str, target: str) -> None:
        """The job renames ``source`` to ``target``. If ``target`` is on another disk, the job is
        expected to copy and remove instead.
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
                made = self._made(path, found)
                if (made or (held and self._keep(path, found))) and not fails:
                    new = target + path[len(source) :]
                    about = self._about_new(new, path, found)
                    self._log.note("renamed", path, to=new, **about)
                    if not about["folder"]:
                        self._note_crossing(path, theirs=not made)
                        self._note_writer(new, about["checkpoint"], anew=True)

    def links(self, source: str, target: str) -> None:
        with self._log.alone():
            stat = _lstat(source)
            if stat is None or os.path.lexists(target):
                return
            held = self.scope.holds(source) or self.scope.holds(target)
            if below(source, ("/proc",)):  # a file without a name so far (O_TMPFILE)
                self._makes(target)
            elif self._made(source, stat) or (held and self._keep(source, stat)):
                about = self._about_new(target, source, stat)
                self._log.note("made", target, **about)
                self._note_crossing(source)
                self._note_writer(target, about["checkpoint"], anew=True)

    def makes(self, path: str, folder: bool = False) -> None:
        """The job creates ``path``, if nothing is there yet."""
        if not os.path.lexists(path):
            with self._log.alone():
                self._makes(path, folder=folder)

    def removes_directory(self, path: str) -> None:
        """The job removes the directory ``path``, if it is empty."""
        stat = _lstat(path)
        if stat is not None and S_ISDIR(stat.st_mode) and not os.listdir(path):
            with self._log.alone():
                self._loses_its_name(path, stat)

    def changes_mode(self, path: str) -> None:
        """The job changes the mode or times of ``path``."""
        with self._log.alone():
            stat = _lstat(path)
            if stat is not None and self._is_theirs(path, stat):
                self._keep(path, stat)

    # ------------------------------------------------------------------ how

    # These two come last in the methods above: should they fail, nothing of the user's is lost.

    def _note_writer(self, path: str, checkpoint: bool, anew: bool) -> None:
        """Note that this session writes ``path``: ``anew``, or as well as who wrote it before."""
        if not self.session or not self.scope.holds(path, checkpoint):
            return
        known = self._log.writers.get(path, self.session)
        by = self.session if anew or known == self.session else BOTH
        if self._log.writers.get(path) != by:
            self._log.note("written", path, by=by)

    def _note_crossing(self, path: str, theirs: bool = False) -> None:
        """Note it if the other session has written ``path``, or would miss it (``theirs``: the
        user's)."""
        if not self.session or path in self._log.crossed:
            return
        if theirs or self._log.writers.get(path, self.session) != self.session:
            self._log.note("crossed", path)

    def _makes(self, path: str, checkpoint: bool = False, folder: bool = False) -> None:
        # without its directory the call fails; if both appear later, another program made them
        if not self._own(path) and os.path.isdir(os.path.dirname(path)):
            stays = not self.scope.holds(path, checkpoint) and path not in self._log.kept
            self._log.note("made", path, folder=folder, stays=stays, checkpoint=checkpoint)

    def _about_new(self, path: str, old: str, stat: os.stat_result) -> dict[str, Any]:
        """The log entry for ``path``, a new name of ``old``, which the session made or keeps."""
        kept = old in self._log.kept or (stat.st_dev, stat.st_ino) in self._log.inodes
        made = self._log.made.get(old, Made())._replace(folder=S_ISDIR(stat.st_mode))
        stays = not kept and not self.scope.holds(path, made.checkpoint)
        return made._replace(inode=0 if made.folder else stat.st_ino, stays=stays)._asdict()

    def _keep(self, path: str, stat: os.stat_result) -> bool:
        """Keep a file or directory that the session has not made; False if a different file is
        already kept under this name.
        """
        known, folder = self._log.kept.get(path), S_ISDIR(stat.st_mode)
        if known is None:
            # it may already be kept under another name
            about = self._log.inodes.get((stat.st_dev, stat.st_ino)) or _about(stat)
            try:
                self._log.note("kept", path, **about)
            except OSError as error:
                raise cannot_keep(path, error) from error
        elif not folder and (known["dev"], known["ino"]) != (stat.st_dev, stat.st_ino):
            if path not in self._log.unkept:
                why = (
                    "another program rewrote it after the trial had changed it; only the version"
                    " from before the trial is restored"
                )
                self._log.note("unkept", path, why=why)
            return False
        if not folder:
            self._backups.keep(path, stat)
        return True

    def _spare(self, path: str, stat: os.stat_result, flags: int, checkpoint: bool) -> None:
        """Save the contents of a kept file that is about to be opened for writing."""
        anew = flags & os.O_TRUNC and flags & os.O_CREAT
        # a file opened to append may be cut and written anew all the same, e.g. a locked table (a+)
        most = COPY_BYTES if flags & os.O_RDWR else APPENDED_BYTES
        appended = flags & os.O_APPEND and stat.st_size > most
        if not anew and (stat.st_size == 0 or appended):
            return  # restoring only has to cut it to its old length
        self._log.flush()
        self._backups.flush()
        if anew and _unlinked(path):  # the old contents live on under the second name
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
            text = "autotune needs this until the trial ends (use --run-dir to place it elsewhere)"
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
        "mode": S_IMODE(stat.st_mode),
        "folder": S_ISDIR(stat.st_mode),
    }
    return found | {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _unlinked(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:  # a directory that may not be written to, a mount point
        return False
    return True


def _opens_old(path: str, stat: os.stat_result, flags: int) -> bool:
    """Whether opening will succeed and open the existing file."""
    regular, new = S_ISREG(stat.st_mode), flags & os.O_EXCL and flags & os.O_CREAT
    return regular and not new and os.access(path, os.W_OK)


def _renaming_fails(stat: os.stat_result, there: Any, source: str, target: str) -> bool:
    """Whether renaming will presumably fail or do nothing: other disk, no permission, target in the
    way, same file.
    """
    parents = os.path.dirname(source), os.path.dirname(target)
    folder = _lstat(parents[1])
    if folder is None or folder.st_dev != stat.st_dev:
        return True
    if not all(os.access(parent, os.W_OK | os.X_OK) for parent in parents):
        return True
    if there is None:
        return below(target, (source,))
    if S_ISDIR(stat.st_mode):
        return not S_ISDIR(there.st_mode) or bool(os.listdir(target))
    return S_ISDIR(there.st_mode) or os.path.samestat(there, stat)


def _tree(path: str, stat: os.stat_result) -> Iterator[tuple[str, os.stat_result]]:
    """``path``, and everything in it if it is a directory."""
    yield path, stat
    for above, folders, files in os.walk(path) if S_ISDIR(stat.st_mode) else ():
        for name in (*folders, *files):
            found = _lstat(os.path.join(above, name))
            if found is not None:
                yield os.path.join(above, name), found
