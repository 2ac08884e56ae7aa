"""What a trial writes outside its own directory, noted before it happens, so that it can be put back afterwards (restore.py).

    the job is about to …            if the session has made it      if it is anybody else's (backups.py)
    write a file that is not there   named as the session's          –
    overwrite a file                 –                               moved aside, and what takes its place is the session's
    append to a file                 –                               its length is noted
    change a file in place           –                               copied
    remove or replace a file         no longer named                 gets a second name
    rename a file                    named by its new name           gets a second name; the renamed one is the session's
    rename a directory               what is in it is renamed        and it is renamed back (renames.py)
    remove a directory               no longer named                 its mode is noted, and it is made again

Two questions decide: **has this session made it** (created.py), and **is it looked after** (places.py). Only what the session has made is
removed in the end. What it has not made is kept wherever it is looked after, also in directories the session has made, where other programs
may write; a file that is renamed to where things are looked after is looked after from then on, and goes back to where it came from.

    <session>/written/places      what is looked after and what is not
    <session>/written/e-… u-…     originals, and those that could not be kept
    <session>/written/i-…         names of what the session has made
    <session>/written/renamed/…   directories that were renamed
    <session>/written/kept/…      files moved, linked or copied
"""

from __future__ import annotations

import os
import sys
from typing import Any

from autotune_trials.file_restore.backups import COPY_BYTES, GROWS, WHOLE, CannotKeep, Originals, part
from autotune_trials.file_restore.created import CHECKPOINT, STAYS, Names
from autotune_trials.file_restore.renames import Moves
from autotune_trials.file_restore.scope import Places, below


class Ledger:
    """Of one process. Its methods are called before the job does what they are named after; paths are absolute and resolved.

    Raises:
        CannotKeep: the job's own call must fail with this.
        OSError: something new could not be noted; the job's own call will go on.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        with open(os.path.join(directory, "places"), encoding="utf-8", errors="surrogateescape") as file:
            self.places = Places.load(file.read()).with_caches(sys.prefix, sys.base_prefix)
        self._names, self._moves, self._originals = Names(directory), Moves(directory), Originals(directory)
        os.register_at_fork(after_in_child=self._names.begin_again)

    # ------------------------------------------------------------------ what the job is about to do

    def opens(self, path: str, flags: int, checkpoint: bool = False) -> None:
        """Open ``path`` for writing with ``flags`` of os.open."""
        stat, held = _stat(path), self._holds(path, checkpoint)
        if stat is None:
            if flags & os.O_CREAT:
                self._makes(path, "+", CHECKPOINT * checkpoint)
        elif _opens_old(path, stat, flags):
            anew = bool(flags & os.O_TRUNC and flags & os.O_CREAT)
            if held and not self._made(path, stat):
                self._changes(path, stat, flags, anew, checkpoint)
            else:
                if self._moves.shared(stat):
                    self._part(path, anew)
                if held and checkpoint:
                    self._names.log("+", path, flags=CHECKPOINT)

    def removes(self, path: str) -> None:
        """Remove the file ``path``."""
        self._require_not_ours(below(path, (self.directory,)), path)
        stat = _lstat(path)
        if stat is None or _is_directory(stat) or self._own(path):
            return
        if self._holds(path) and not self._made(path, stat):
            self._keep(path, stat)
        self._names.log("-", path)

    def renames(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target``."""
        self._require_not_ours(below(source, (self.directory,)) or below(self.directory, (source,)), source)
        stat = _lstat(source)
        if stat is None:
            return
        fails = _renaming_fails(stat, source, target)
        if _is_directory(stat):
            self._renames_directory(source, target, stat, fails)
        else:
            self._renames_file(source, target, stat, fails)

    def links(self, source: str, target: str) -> None:
        """Give the file ``source`` a second name."""
        unnamed = below(source, ("/proc",))  # a file without a name (O_TMPFILE), which the job now gives one
        stat = _stat(source) if unnamed else _lstat(source)
        if stat is None or os.path.lexists(target):
            return
        held = self._holds(target)
        if not unnamed and not self._made(source, stat):
            if held and not self._holds(source):  # its other name may soon be the only one
                self._keep(source, stat, target)
            if held or self._holds(source):
                self._moves.share(stat)
        self._names.log("+", target, flags=STAYS * self._stays(target), inode=stat.st_ino)

    def makes(self, path: str) -> None:
        """Make something at ``path`` that is no directory, if nothing is there."""
        if not os.path.lexists(path):
            self._makes(path, "+")

    def makes_directory(self, path: str) -> None:
        """Make the directory ``path``, if nothing is there."""
        if not os.path.lexists(path):
            self._makes(path, "d")

    def removes_directory(self, path: str) -> None:
        """Remove the directory ``path``, if it is empty."""
        stat = _lstat(path)
        if stat is None or not _is_directory(stat) or self._own(path) or os.listdir(path):
            return
        self._removes_folder(path, stat)
        self._moves.forget(stat)

    # ------------------------------------------------------------------ files

    def _makes(self, path: str, what: str, flags: int = 0) -> None:
        if not self._own(path):
            stays = self._stays(path, bool(flags & CHECKPOINT))
            if not (stays and self._moves.copied_to(path)):
                self._names.log(what, path, flags=flags | STAYS * stays)

    def _changes(self, path: str, stat: Any, flags: int, anew: bool, checkpoint: bool) -> None:
        """A file that is not the session's is about to be opened for writing."""
        origin = self._moves.origin(path)
        grows = stat.st_size == 0 or (flags & os.O_APPEND and not _rewrites(flags, stat))
        level, kind = (GROWS, "grown") if grows else (WHOLE, "moved" if anew else "copied")
        if not self._originals.keep(path, origin, level, kind, stat, **self._whence(path, origin)) and self._originals.shares_a_kept_file(origin, stat):
            self._part(path, anew)
        elif kind == "moved" and not os.path.lexists(path):
            self._names.log("+", path, flags=CHECKPOINT * checkpoint)

    def _part(self, path: str, anew: bool) -> None:
        flags = self._names.files.get(path, (STAYS * self._stays(path), 0))[0]
        part(path, anew)
        self._names.log("+", path, flags=flags)

    def _keep(self, path: str, stat: Any, target: str = "") -> bool:
        """Whether this very file, which is about to lose its name (to get ``target`` for it), will be put back."""
        origin = self._moves.origin(path)
        mine = self._originals.keep(path, origin, WHOLE, "linked", stat, **self._whence(target or path, origin))
        return mine or self._originals.is_kept(origin, stat)

    def _whence(self, path: str, origin: str) -> dict[str, Any]:
        """Of what came from where nobody looks after things: that it did, and where it would stay."""
        return {} if self.places.holds(origin) else {"outside": True, "to": path}

    def _renames_file(self, source: str, target: str, stat: Any, fails: bool) -> None:
        leaves, enters, made = self._holds(source), self._holds(target), self._made(source, stat)
        safe = not made and (leaves or enters) and self._keep_renamed(source, target, stat, leaves)
        if fails:
            if not (leaves or enters or made):
                self._moves.copies(source, target, enters)
                self._names.log("-", target)
            return
        there = _lstat(target)
        if there is not None and enters and not self._made(target, there):
            self._keep(target, there)
        if safe:
            self._moves.share(stat)
        if made or safe:
            self._names.log(">", source, target, flags=STAYS * (made and self._stays(target)), inode=stat.st_ino)
        else:  # somebody else's, by whatever name
            self._names.log("!" if enters else "-", target)

    def _keep_renamed(self, source: str, target: str, stat: Any, leaves: bool) -> bool:
        try:
            return self._keep(source, stat, target)
        except CannotKeep:
            if leaves:
                raise
            return False  # it will be found where the job puts it

    # ------------------------------------------------------------------ directories

    def _renames_directory(self, source: str, target: str, stat: Any, fails: bool) -> None:
        leaves, enters, made = self._holds(source), self._holds(target), self._own(source) or self._names.made_folder(source)
        if fails:
            if not (leaves or made or os.path.lexists(target)):
                self._moves.copies(source, target, enters)
            return
        there = _lstat(target)
        if there is not None:
            self._removes_folder(target, there)
            self._moves.forget(there)
        if leaves or enters or self._moves.holds_any(source):
            self._originals.note_renamed(source, target, stat, made=made, outside=not leaves)
            self._moves.renames(stat, source, target, made)
        self._names.log("m", source, target, flags=STAYS * self._stays(target))

    def _removes_folder(self, path: str, stat: Any) -> None:
        if self._names.made_folder(path):
            self._names.log("x", path)
        elif self._holds(path):
            self._originals.keep(path, self._moves.origin(path), WHOLE, "folder", stat)

    # ------------------------------------------------------------------ whose it is, and where

    def _made(self, path: str, stat: Any) -> bool:
        return self._own(path) or self._names.made(path, stat)

    def _own(self, path: str) -> bool:
        return below(path, self.places.own)

    def _holds(self, path: str, checkpoint: bool = False) -> bool:
        """Whether ``path`` is looked after: by its place, or because it is the user's and was only renamed to there."""
        if self.places.holds(path, checkpoint):
            return True
        if self._own(path):
            return False
        origin = self._moves.origin(path)
        return (origin != path and self.places.holds(origin, checkpoint)) or self._moves.copied_from(path)

    def _stays(self, path: str, checkpoint: bool = False) -> bool:
        """Whether what is made at ``path`` outlives the session. Python's compiled modules go with a directory that does not."""
        return not self._holds(path, checkpoint) and not ("__pycache__" in path and self._names.goes_with_a_folder(path))

    def _require_not_ours(self, ours: bool, path: str) -> None:
        if ours:
            import errno

            raise CannotKeep(errno.EPERM, "autotune keeps this until the trial has ended (--run-dir names another place)", path)


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


def _opens_old(path: str, stat: Any, flags: int) -> bool:
    """Whether opening will succeed and find the file that is there."""
    return bool(stat.st_mode & 0o170000 == 0o100000) and not (flags & os.O_EXCL and flags & os.O_CREAT) and os.access(path, os.W_OK)


def _rewrites(flags: int, stat: Any) -> bool:
    """Whether what is opened for appending may be read, cut and written anew (``a+``): a table under a lock, say."""
    return bool(flags & os.O_RDWR and stat.st_size <= COPY_BYTES)


def _renaming_fails(stat: Any, source: str, target: str) -> bool:
    """Whether renaming will fail, or do nothing, as far as one can tell: another disk, something in the way, one and the same file."""
    parent, there = _stat(os.path.dirname(target)), _lstat(target)
    if parent is None or parent.st_dev != stat.st_dev:
        return True
    if there is not None and (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino):
        return True
    if not _is_directory(stat):
        return there is not None and _is_directory(there)
    return below(target, (source,)) or (there is not None and not (_is_directory(there) and not os.listdir(target)))


def _is_directory(stat: Any) -> bool:
    return bool(stat.st_mode & 0o170000 == 0o040000)
