"""What a trial writes outside its own directory, noted before it happens, so that it can be put back afterwards.

    the job is about to …            noted as    what is kept                              put_back.py then
    write a file that is not there   made        nothing                                   removes it
    overwrite a file                 moved       the file itself, renamed out of the way   renames it back
    append to a file                 grown       its length                                cuts it off there
    change a file in place           copied      a copy, up to a gibibyte                  moves the copy back
    remove or replace a file         linked      a second name for it                      moves that back
    rename a directory               renamed     both names                                renames it back
    remove a directory               folder      its mode                                  makes it again
    (none of this can be done)       unkept      nothing                                   says so

Nothing is copied where a rename or a link will do: a checkpoint of ten gigabytes costs what a small file costs. A path is
claimed by whoever touches it first, in any process of the session (ranks, DataLoader workers), with a file that only one
can create; what happens to the path after that does not matter, because all that counts is what was there before.

In a directory that was made nothing was there before, so no claims are needed. But another program may write there as well, and
what it wrote must stay: what the job makes, renames and removes inside is logged by name, and only that is removed.

    <session>/written/places      what is looked after and what is not (see Places)
    <session>/written/e-…         one claim each: JSON, see put_back.py
    <session>/written/i-…         one a process: names inside directories that were made, as they came and went (see _log)
    <session>/written/renamed/…   where directories of the user's were renamed to: what is in them is the user's there as well
    <session>/written/kept/…      files moved, linked or copied
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from autotune_trials.places import Places, below

COPY_BYTES = 1 << 30  # a larger file that is changed in place is not copied: it would cost the trial seconds, and the disk its room
WAIT_S = 2.0  # for another process that has claimed the same file and is moving it
GROWS, WHOLE = 1, 2  # how much of a path a claim keeps: its beginning, everything
RENAMED = "renamed"  # directory below the ledger
BESIDE = ".autotune-kept-"  # an original that stays on its own disk, because the session lies on another


class CannotKeep(OSError):
    """A file of the user's can be neither noted nor kept: what would change it must not happen."""


class Ledger:
    """The claims of one process. Its methods are called before the job does what they are named after.

    Raises:
        CannotKeep: the job's own call must fail with this.
        OSError: something new could not be noted; the job's own call will go on.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        with open(os.path.join(directory, "places"), encoding="utf-8", errors="surrogateescape") as file:
            self.places = Places.load(file.read()).with_caches(sys.prefix, sys.base_prefix)
        os.makedirs(os.path.join(directory, RENAMED), exist_ok=True)
        self._seen: dict[str, int] = {}  # path -> how much of it is kept
        self._made: set[str] = set()  # directories this session made: nothing inside needs noting
        self._moved: set[str] = set()  # where this process has renamed directories of the user's to
        self._old: set[str] = {os.sep}  # directories that were there before, and so are all above them
        self._count = 0

    # ------------------------------------------------------------------ what the job is about to do

    def opens(self, path: str, flags: int, checkpoint: bool = False) -> None:
        """Open ``path`` (absolute, resolved) for writing with ``flags`` of os.open."""
        if not self._holds(path, checkpoint):
            self._log_passed(path)
            return
        stat = _stat(path)
        if stat is None:
            self._makes(path, checkpoint)
            return
        if not _opens_old(path, stat, flags):
            return
        anew = bool(flags & os.O_TRUNC and flags & os.O_CREAT)
        if stat.st_nlink > 1 and self._may_share_a_kept_file(path):
            self._part(path, anew)
        elif self._inside_made(path) and not checkpoint:
            return
        elif stat.st_size == 0 or (flags & os.O_APPEND and not _rewrites(flags, stat)):
            self._claim(path, GROWS, checkpoint, "grown", stat)
        elif self._seen.get(path, 0) < WHOLE:
            self._claim(path, WHOLE, checkpoint, "moved" if anew else "copied", stat)

    def removes(self, path: str, logged: bool = True) -> None:
        """Remove the file ``path``, or put another in its place (which is then logged in other words)."""
        self._require_not_ours(below(path, (self.directory,)), path)
        stat = _stat(path, follow=False) if self._holds(path) else None
        if stat is None or _is_directory(stat):
            return
        known = self._inside_made(path) or not self._claim(path, WHOLE, False, "linked", stat)
        if known and logged:  # what lies there later may be another program's
            self._log("-", path)

    def renames(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target``."""
        self._require_not_ours(below(source, (self.directory,)) or below(self.directory, (source,)), source)
        stat = _stat(source, follow=False)
        if stat is None:
            return
        if _is_directory(stat):
            if self._holds(source) and not self._inside_made(source) and self._claim(source, WHOLE, False, "renamed", stat, to=target):
                self._moved.add(target)
            elif self._was_renamed(stat):
                self._renames_again(source, target, stat)
            else:
                self._moves_made(source, target)
            return
        self.removes(source, logged=False)
        if self._holds(target) and _stat(target, follow=False) is None and not self._inside_made(target):
            self._makes(target, False)
        self.removes(target, logged=False)
        self._log_renamed(source, target)

    def _renames_again(self, source: str, target: str, stat: Any) -> None:
        """A directory of the user's whose name has been noted: the first attempt failed, say, or it was renamed there and back."""
        entry = {"kind": "renamed", "path": source, "to": target, "at": time.monotonic_ns(), "checkpoint": False}
        entry |= {"ino": stat.st_ino, "mode": stat.st_mode & 0o7777}
        self._publish(f"{RENAMED}/{_digest(target)}", entry, durable=False)
        self._publish(f"e-{_digest(f'{source}{os.sep}{target}')}-{entry['at']}", entry, durable=False)
        self._moved.add(target)

    def _was_renamed(self, stat: Any) -> bool:
        """Whether this is a directory of the user's that was to be renamed, and has not been removed since: its number may be used again."""
        known = any(entry.get("ino") == stat.st_ino for entry in self._renamed())
        return known and not os.path.exists(os.path.join(self.directory, f"{RENAMED}/x-{stat.st_ino}"))

    def _moves_made(self, source: str, target: str) -> None:
        """A directory that was made here gets another name; what is in it goes with it."""
        self.makes_directory(target)  # first, so that it is removed last
        for inner in self._yours_below(source):
            to = target + inner[len(source) :]
            if self._claim(inner, WHOLE, False, "renamed", os.lstat(inner), to=to):
                self._moved.add(to)
        if self._holds(target) and not self._inside_made(os.path.join(target, "any")):  # a name that a directory of the user's had
            from autotune_trials.put_back import inside_made

            theirs = inside_made(self.directory)
            for folder, folders, names in os.walk(source):
                for path in (os.path.join(folder, name) for name in folders + names):
                    if path in theirs.files or path in theirs.folders or self._is_made(path):
                        self._makes(target + path[len(source) :], False)
        self._log("d>", source, target)

    def makes(self, path: str) -> None:
        """Make something at ``path`` that is no directory, if nothing is there."""
        if not self._holds(path):
            self._log_passed(path)
        elif _stat(path, follow=False) is None:
            self._makes(path, False)

    def makes_directory(self, path: str) -> None:
        """Make the directory ``path``."""
        if not self._holds(path):
            self._log_passed(path, folder=True)
        elif _stat(path, follow=False) is None:
            self._old.discard(path)
            self._makes(path, False, folder=True)

    def removes_directory(self, path: str) -> None:
        """Remove the empty directory ``path``."""
        stat = _stat(path, follow=False)
        if stat is not None and _is_directory(stat) and self._was_renamed(stat) and not os.listdir(path):
            self._publish(f"{RENAMED}/x-{stat.st_ino}", {}, durable=False)
        if stat is not None and self._holds(path) and not self._inside_made(path):
            self._claim(path, WHOLE, False, "folder", stat)

    # ------------------------------------------------------------------ claims

    def _makes(self, path: str, checkpoint: bool, folder: bool = False) -> None:
        inside = self._inside_made(path)
        known = bool((checkpoint or not inside) and not self._claim(path, WHOLE, checkpoint, "made", None))
        if known or inside or self.places.passes(path):
            self._log("d" if folder else "+", path)

    def _log_passed(self, path: str, folder: bool = False) -> None:
        """Something is made where nothing is claimed, but from where it may get into a directory that was made, or goes with one."""
        if self.places.passes(path) and _stat(path, follow=False) is None:
            self._log("d" if folder else "+", path)

    def _log_renamed(self, source: str, target: str) -> None:
        """A file, told where a name inside a made directory is concerned, or one that may get there."""
        if any(self.places.passes(path) or self._inside_made(path) or self._is_made(path) for path in (source, target)):
            theirs = self.places.passes(source) or self._inside_made(source)  # else the job's own, or kept under another name
            self._log(">" if theirs else "+>", source, target)

    def _log(self, what: str, path: str, to: str = "") -> None:
        """One record of a name: ``+`` a file, ``d`` a directory made; ``-`` removed; ``>`` renamed, ``+>`` from where it was claimed; ``d>`` a directory.

        Opened for each: a job that closes every descriptor it does not know must not find ours among its own files.
        """
        record = b"\0".join((b"%d" % time.monotonic_ns(), what.encode(), os.fsencode(path), os.fsencode(to), b""))
        log = os.open(os.path.join(self.directory, f"i-{os.getpid()}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(log, record)
        finally:
            os.close(log)

    def _holds(self, path: str, checkpoint: bool = False) -> bool:
        """Whether ``path`` is looked after: by its place, or because it is the user's and was only renamed to there."""
        return self.places.holds(path, checkpoint) or bool(self._moved and below(os.path.dirname(path), tuple(self._moved)))

    def _inside_made(self, path: str) -> bool:
        """Whether a directory above ``path`` was made in this session, by any of its processes.

        What lies in a directory of the user's that was renamed to there is the user's.
        """
        walked: list[str] = []
        folder = os.path.dirname(path)
        while folder not in self._old:
            if self._is_yours(folder) or (not walked and self._is_yours(path)):
                return False
            walked.append(folder)
            if self._is_made(folder):
                self._made.update(walked)
                return True
            folder = os.path.dirname(folder)
        self._old.update(walked)
        return False

    def _is_made(self, folder: str) -> bool:
        return folder in self._made or self._read(f"e-{_digest(folder)}-{WHOLE}").get("kind") == "made"

    def _is_yours(self, path: str) -> bool:
        """Whether a directory of the user's was renamed to there."""
        return path in self._moved or os.path.exists(os.path.join(self.directory, f"{RENAMED}/{_digest(path)}"))

    def _renamed(self) -> list[dict[str, Any]]:
        return [self._read(f"{RENAMED}/{name}") for name in os.listdir(os.path.join(self.directory, RENAMED))]

    def _yours_below(self, folder: str) -> list[str]:
        found = [entry.get("to", "") for entry in self._renamed()]
        return [path for path in found if path.startswith(folder + os.sep) and os.path.isdir(path)]

    def _may_share_a_kept_file(self, path: str) -> bool:
        """Whether a file with several names may be one we keep: the job has renamed it, or tried to remove it."""
        noted = self._read(f"e-{_digest(path)}-{WHOLE}")
        return noted["kind"] != "copied" if noted else self._inside_made(path)

    def _part(self, path: str, anew: bool) -> None:
        """Make ``path`` a file of its own: what is written to it must not reach its other name."""
        if anew:
            os.unlink(path)
            return
        import shutil

        own = f"{path}{BESIDE}own"
        try:
            shutil.copy2(path, own)
            os.replace(own, path)
        finally:
            if os.path.lexists(own):
                os.unlink(own)

    def _claim(self, path: str, level: int, checkpoint: bool, kind: str, stat: Any, to: str = "") -> bool:
        """Note ``path`` as it is now; False if it has been noted before."""
        if self._seen.get(path, 0) >= level:
            return False
        name = f"{_digest(path)}-{level}"
        entry = {"kind": kind, "path": path, "to": to, "at": time.monotonic_ns(), "checkpoint": checkpoint}
        if stat is not None:
            entry |= {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "mode": stat.st_mode & 0o7777, "ino": stat.st_ino, "dev": stat.st_dev}
        if kind in ("moved", "linked", "copied"):
            entry["kept"], entry["beside"] = self._places_for(path, name)
        if kind == "renamed":  # before the claim: no process may take what is in it for made
            self._publish(f"{RENAMED}/{_digest(to)}", entry, durable=False)
        try:
            mine = self._publish(f"e-{name}", entry, durable=kind in ("moved", "copied"))
        except OSError as error:
            if stat is None:
                raise
            raise _cannot_keep(path, error) from error
        if mine:
            self._keep(entry, name)
        elif "kept" in entry:
            self._wait_for_the_other(self._read(f"e-{name}"))
        self._seen[path] = level
        return mine

    def _places_for(self, path: str, name: str) -> tuple[str, str]:
        """Where the original goes, and where else if that cannot be: two mounts of one disk look like one.

        Into the session's directory; if that lies on another disk, as far up as one may write: the job may list its own directory, or
        remove it. The name is this session's own: another one may keep the same path.
        """
        kept, folder = os.path.join(self.directory, "kept"), os.path.dirname(path)
        own = f"{BESIDE}{_digest(self.directory)[:8]}-{name}"
        if os.stat(kept).st_dev == os.lstat(folder).st_dev:
            return os.path.join(kept, name), os.path.join(folder, own)
        return os.path.join(_top(folder), own), os.path.join(folder, own)

    def _publish(self, name: str, entry: dict[str, Any], durable: bool) -> bool:
        """Write the claim ``name``, whole or not at all; False if it is another's already."""
        import json
        import threading

        self._count += 1
        temporary = os.path.join(self.directory, f".{os.getpid()}-{threading.get_ident()}-{self._count}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(entry, file)
            if durable:  # a power cut must not leave a moved file without word of where it is
                file.flush()
                os.fsync(file.fileno())
        mine = _take_name(temporary, os.path.join(self.directory, name))
        if mine and durable:
            _flush_directory(self.directory)
        return mine

    def _keep(self, entry: dict[str, Any], name: str) -> None:
        """Bring the original to safety. What cannot be kept one way is kept another, or said not to be."""
        import errno

        path, kept = entry["path"], entry.get("kept", "")
        ways = _WAYS.get(entry["kind"], ())
        trouble: OSError | None = None
        for way in ways:
            for place in dict.fromkeys((kept, entry.get("beside", kept))):
                try:
                    way(path, place)
                    return
                except OSError as error:
                    trouble = error
        if trouble is not None:
            now = _stat(path, follow=False)
            if now is not None and _is_regular(now) and not (entry["kind"] == "copied" and trouble.errno == errno.EFBIG):
                os.unlink(os.path.join(self.directory, f"e-{name}"))  # so that the next attempt is not taken for the second
                raise _cannot_keep(path, trouble) from trouble
            self._publish(f"u-{name}", {**entry, "kind": "unkept", "why": trouble.strerror or str(trouble)}, durable=False)

    def _require_not_ours(self, ours: bool, path: str) -> None:
        if ours:
            import errno

            raise CannotKeep(errno.EPERM, "autotune keeps this until the trial has ended (--run-dir names another place)", path)

    def _wait_for_the_other(self, entry: dict[str, Any]) -> None:
        """Another process brings this very file to safety: until it has, opening it would spoil the original."""
        deadline, copied = time.monotonic() + WAIT_S, -1
        while "kept" in entry and not any(map(os.path.lexists, (entry["kept"], entry["beside"]))) and time.monotonic() < deadline:
            for half in (_stat(entry[place] + ".half") for place in ("kept", "beside")):
                if half is not None and half.st_size > copied:  # a large one takes its time
                    deadline, copied = time.monotonic() + WAIT_S, half.st_size
            now = _stat(entry["path"], follow=False)
            if now is None or now.st_ino != entry["ino"]:
                return
            time.sleep(0.001)

    def _read(self, name: str) -> dict[str, Any]:
        """The claim ``name``, {} if there is none."""
        import json

        try:
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                entry: dict[str, Any] = json.load(file)
        except OSError:
            return {}
        return entry


def _cannot_keep(path: str, error: OSError) -> CannotKeep:
    import errno

    why = error.strerror or str(error)
    return CannotKeep(error.errno or errno.EIO, f"autotune cannot keep this file as it is ({why}), so the trial may not change it", path)


def _stat(path: str, follow: bool = True) -> Any:
    try:
        return os.stat(path, follow_symlinks=follow)
    except (OSError, ValueError):
        return None


def _opens_old(path: str, stat: Any, flags: int) -> bool:
    """Whether opening will succeed and find the file that is there."""
    return _is_regular(stat) and not (flags & os.O_EXCL and flags & os.O_CREAT) and os.access(path, os.W_OK)


def _rewrites(flags: int, stat: Any) -> bool:
    """Whether what is opened for appending may be read, cut and written anew (``a+``): a table under a lock, say."""
    return bool(flags & os.O_RDWR and stat.st_size <= COPY_BYTES)


def _is_regular(stat: Any) -> bool:
    return bool(stat.st_mode & 0o170000 == 0o100000)


def _is_directory(stat: Any) -> bool:
    return bool(stat.st_mode & 0o170000 == 0o040000)


def _digest(path: str) -> str:
    import hashlib

    return hashlib.blake2b(os.fsencode(path), digest_size=12).hexdigest()


def _top(folder: str) -> str:
    """The highest directory above ``folder`` on the same disk that may be written to."""
    device = os.lstat(folder).st_dev
    while True:
        parent = os.path.dirname(folder)
        if parent == folder or os.lstat(parent).st_dev != device or not os.access(parent, os.W_OK | os.X_OK):
            return folder
        folder = parent


def _take_name(temporary: str, name: str) -> bool:
    """Give the file ``temporary`` its final name, unless that is taken."""
    try:
        os.link(temporary, name)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.exists(name):
            return False
        os.rename(temporary, name)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return True


def _flush_directory(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _link(path: str, kept: str) -> None:
    os.link(path, kept, follow_symlinks=False)


def _copy(path: str, kept: str) -> None:
    """A copy beside a temporary name first, so that a half copy is never taken for the original.

    Raises:
        OSError: too large, or no room.
    """
    import errno
    import shutil

    if os.path.islink(path):
        os.symlink(os.readlink(path), kept)
        return
    if os.stat(path).st_size > COPY_BYTES:
        raise OSError(errno.EFBIG, f"larger than {COPY_BYTES >> 20} MiB and changed in place")
    half = kept + ".half"
    try:
        shutil.copy2(path, half)
        os.rename(half, kept)
    finally:
        if os.path.exists(half):
            os.unlink(half)


# Tried in order: what a disk or a directory's mode does not allow is copied.
_WAYS: dict[str, tuple[Callable[[str, str], None], ...]] = {"moved": (os.rename, _copy), "linked": (_link, _copy), "copied": (_copy,)}
