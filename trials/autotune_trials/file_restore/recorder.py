"""What a trial writes outside its own directory, noted before it happens, so that it can be put
back (restore.py).

    the job is about to …                if the session has made it     if it is anybody else's
    make a file or directory             noted as made                  –
    overwrite, change or append to       –                              kept
    remove or replace a file             no longer noted                kept
    rename, or link, a file              the new name is noted          kept, and the new name is the session's
    rename a directory                   so is what is in it            so is every file in it
    remove a directory, change a mode    no longer noted                its mode is noted

Two questions decide: **has this session made it** (log.py), and **is it looked after** (scope.py).
Only what the session has made is removed in the end; what it has not made is kept wherever it is
looked after, also in directories that the session has made. What is moved there from elsewhere
stays, and is named.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from autotune_trials.file_restore.backups import COPY_BYTES, Backups, CannotKeep, cannot_keep
from autotune_trials.file_restore.log import Log
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
            stat = _stat(path)
            if stat is None:
                if flags & os.O_CREAT:
                    self._makes(path, checkpoint=checkpoint)
            elif _opens_old(path, stat, flags):
                if self._is_theirs(path, stat, checkpoint):
                    self._keep(path, stat)
                elif checkpoint and path in self._log.made:
                    self._log.note(
                        "made", path, **self._log.made[path]._replace(checkpoint=True)._asdict()
                    )
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
        """Rename ``source`` to ``target``."""
        ours = below(source, (self.directory,)) or below(self.directory, (source,))
        self._require_not_ours(ours, source)
        with self._log.alone():
            stat = _lstat(source)
            if stat is None:
                return
            if _renaming_fails(stat, source, target):
                if (
                    _on_another_disk(stat, target)
                    and not self._holds(source)
                    and not self._made(source, stat)
                ):
                    self._log.note("foreign", target, copied=True)  # and then removed
            elif _is_directory(stat):
                self._renames_directory(source, target)
            else:
                self._renames_file(source, target, stat)

    def links(self, source: str, target: str) -> None:
        """Give the file ``source`` a second name."""
        nameless = below(source, ("/proc",))  # O_TMPFILE
        with self._log.alone():
            stat = _stat(source) if nameless else _lstat(source)
            if stat is None or os.path.lexists(target):
                return
            if (
                nameless
                or self._made(source, stat)
                or (self._holds(source) and self._keep(source, stat))
            ):
                self._makes(
                    target, inode=stat.st_ino, theirs=(stat.st_dev, stat.st_ino) in self._log.inodes
                )
            elif self._holds(target):
                self._log.note("foreign", target, copied=False)

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

    def _makes(
        self,
        path: str,
        checkpoint: bool = False,
        folder: bool = False,
        inode: int = 0,
        theirs: bool = False,
    ) -> None:
        copies = tuple(path for path, copied in self._log.foreign.items() if copied)
        if self._own(path) or (below(path, copies) and path not in self._log.kept):
            return
        stays = not theirs and not self._holds(path, checkpoint)
        self._log.note("made", path, inode=inode, folder=folder, stays=stays, checkpoint=checkpoint)

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
        if not anew and (stat.st_size == 0 or (flags & os.O_APPEND and not _rewrites(flags, stat))):
            return  # it is cut to its length
        self._log.flush()
        self._backups.flush()
        if anew and _unlinked(path):  # the kept one has its contents alone
            self._log.note("gone", path)
            self._makes(path, checkpoint)
        elif why := self._backups.keep_contents(path, stat):
            self._log.note("unkept", path, why=why)

    def _loses_its_name(self, path: str, stat: os.stat_result) -> None:
        if self._is_theirs(path, stat):
            self._keep(path, stat)
        if path in self._log.made:
            self._log.note("gone", path)

    def _renames_file(self, source: str, target: str, stat: os.stat_result) -> None:
        made = self._made(source, stat)
        kept = not made and self._holds(source) and self._keep(source, stat)
        there = _lstat(target)
        if there is not None:
            self._loses_its_name(target, there)
        if made or kept:
            theirs = (stat.st_dev, stat.st_ino) in self._log.inodes
            stays = not theirs and not self._holds(target)
            self._log.note("renamed", source, to=target, inode=stat.st_ino, stays=stays)
        elif self._holds(target):
            self._log.note("foreign", target, copied=False)

    def _renames_directory(self, source: str, target: str) -> None:
        there = _lstat(target)
        if there is not None:
            self._loses_its_name(target, there)
        held, own = self._holds(source), self._own(source)
        theirs = self._keep_tree(source) if held or own else []
        self._log.note("renamed", source, to=target, folder=True, stays=not self._holds(target))
        for path, stat in theirs:
            folder = _is_directory(stat)
            self._log.note(
                "made",
                target + path[len(source) :],
                folder=folder,
                inode=0 if folder else stat.st_ino,
            )
        if not held and not own and target not in self._log.made and self._holds(target):
            self._log.note("foreign", target, copied=False)

    def _keep_tree(self, folder: str) -> list[tuple[str, os.stat_result]]:
        """Keep what somebody else has made in ``folder``, and itself. Returns that, or what lies in
        a directory of ours.
        """
        found = []
        for above, folders, files in os.walk(folder):
            links = [name for name in folders if os.path.islink(os.path.join(above, name))]
            for path in (above, *(os.path.join(above, name) for name in (*links, *files))):
                stat = os.lstat(path)
                if self._own(path) or (not self._made(path, stat) and self._keep(path, stat)):
                    found.append((path, stat))
        return found

    # ------------------------------------------------------------------ whose it is, and where

    def _is_theirs(self, path: str, stat: os.stat_result, checkpoint: bool = False) -> bool:
        return self._holds(path, checkpoint) and not self._made(path, stat)

    def _made(self, path: str, stat: os.stat_result) -> bool:
        return self._own(path) or self._log.has_made(path, stat)

    def _own(self, path: str) -> bool:
        return below(path, self.scope.own)

    def _holds(self, path: str, checkpoint: bool = False) -> bool:
        return self.scope.holds(path, checkpoint)

    def _require_not_ours(self, ours: bool, path: str) -> None:
        if ours:
            import errno

            text = "autotune keeps this until the trial has ended (--run-dir names another place)"
            raise CannotKeep(errno.EPERM, text, path)


def _stat(path: str) -> Any:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


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


def _rewrites(flags: int, stat: os.stat_result) -> bool:
    """Whether what is opened for appending may be read, cut and written anew (``a+``): a table
    under a lock, say.
    """
    return bool(flags & os.O_RDWR and stat.st_size <= COPY_BYTES)


def _renaming_fails(stat: os.stat_result, source: str, target: str) -> bool:
    """Whether renaming will fail, or do nothing, as far as one can tell: another disk, something in
    the way, itself.
    """
    folder, there = os.path.dirname(target), _lstat(target)
    if not all(
        os.path.isdir(f) and os.access(f, os.W_OK | os.X_OK)
        for f in (folder, os.path.dirname(source))
    ):
        return True
    if _on_another_disk(stat, target):
        return True
    if there is not None and (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino):
        return True
    if not _is_directory(stat):
        return there is not None and _is_directory(there)
    taken = there is not None and not (_is_directory(there) and not os.listdir(target))
    return below(target, (source,)) or taken


def _on_another_disk(stat: os.stat_result, target: str) -> bool:
    parent = _stat(os.path.dirname(target))
    return parent is not None and bool(parent.st_dev != stat.st_dev)


def _is_directory(stat: os.stat_result) -> bool:
    return stat.st_mode & 0o170000 == 0o040000
