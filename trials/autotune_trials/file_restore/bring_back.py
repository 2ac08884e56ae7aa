"""Puts one of the user's files or directories back to what it was: the second half of putting back."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil

from autotune_trials.file_restore.backups import ITSELF
from autotune_trials.file_restore.left_behind import Entry, Outcome
from autotune_trials.file_restore.removal import Removal


def rename_back(entry: Entry, outcome: Outcome, removal: Removal, elsewhere: bool) -> None:
    """A directory that was renamed.

    Args:
        elsewhere: it was removed after that, and is made again where it was first.

    Raises:
        OSError: something is in the way.
    """
    path, to = entry["path"], entry["to"]
    if not is_the_one(to, entry):
        if os.path.lexists(to) and not os.path.lexists(path) and not elsewhere:
            raise OSError("another directory is where it was renamed to")
        return
    removal.make_way(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.rename(to, path)
    except OSError:  # something is in the way
        if os.path.isdir(path) and not os.path.islink(path):
            _merge(to, path)
    if os.path.lexists(to):
        if not entry["outside"]:
            raise OSError("another program has written there since")
        outcome["left"].append(to)
        return
    os.chmod(path, entry["mode"])
    removal.renamed(to, path)
    if not entry["made"]:
        outcome["restored"].append(path)


def is_in_the_way(entry: Entry, removal: Removal) -> bool:
    """Whether something else lies where a renamed directory would get back to."""
    if not is_the_one(entry["to"], entry):
        return False
    removal.make_way(entry["path"])
    return os.path.lexists(entry["path"])


def _merge(folder: str, into: str) -> None:
    """Another program has made something where the directory was: what is in it takes its place beside that. Of two things of one name one stays."""
    for name in os.listdir(folder):
        source, target = os.path.join(folder, name), os.path.join(into, name)
        if all(os.path.isdir(path) and not os.path.islink(path) for path in (source, target)):
            _merge(source, target)
        elif not os.path.lexists(target):
            os.rename(source, target)
    with contextlib.suppress(OSError):  # something stays
        os.rmdir(folder)


def is_the_one(path: str, entry: Entry) -> bool:
    """Whether what lies at ``path`` is what ``entry`` is about."""
    if not os.path.lexists(path):
        return False
    stat = os.lstat(path)
    return bool((stat.st_dev, stat.st_ino) == (entry["dev"], entry["ino"]))


def make_folder_again(entry: Entry, restored: list[str]) -> None:
    path = entry["path"]
    if not os.path.isdir(path):
        os.makedirs(path)
        restored.append(path)
    os.chmod(path, entry["mode"])


def restore_file(path: str, entry: Entry, outcome: Outcome) -> None:
    """A file, at ``path``.

    Raises:
        OSError: it cannot be put back; its original stays where it is.
    """
    kind = entry["kind"]
    if kind == "grown":
        _cut(path, entry, outcome)
    elif kind in ("moved", "linked", "copied"):
        _return_original(path, entry, outcome)
    elif kind == "spoilt" and os.path.lexists(entry["kept"]):
        raise OSError("what was noted of it cannot be read; its original is still there")
    elif kind == "unkept":
        outcome["unkept"].append([path, entry["why"]])


def _return_original(path: str, entry: Entry, outcome: Outcome) -> None:
    kept = entry["kept"]
    if not os.path.lexists(kept):  # never taken away: the job was killed before, or it is told as "unkept"
        return
    if os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(kept)):
        os.unlink(kept)  # rename(2) does nothing where both names are one file
        return
    if entry.get("outside") and os.path.lexists(path) and not is_the_one(path, entry):
        _leave_where_it_was_moved(kept, entry["to"], outcome)
        return
    if os.path.lexists(kept + ITSELF):
        _give_its_contents_back(kept + ITSELF, kept)
        _return_original(path, entry, outcome)
        outcome["restored"].append(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)  # what the job made in it is gone by now
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


def _give_its_contents_back(itself: str, copy: str) -> None:
    """To a file with several names, which takes the place of its copy."""
    shutil.copyfile(copy, itself)
    shutil.copystat(copy, itself)
    os.replace(itself, copy)


def _leave_where_it_was_moved(kept: str, to: str, outcome: Outcome) -> None:
    """Where it came from nobody is looked after, and somebody has put something else there since.

    Raises:
        OSError: where the job moved it to there is something else, too.
    """
    if os.path.lexists(to):
        raise OSError("something else lies where it came from")
    os.makedirs(os.path.dirname(to), exist_ok=True)
    shutil.move(kept, to)
    outcome["left"].append(to)


def _is_its_copy(kept: str, path: str, entry: Entry) -> bool:
    """Whether the user's own file still lies at ``path``, with other names or another owner, which a copy of it would not have."""
    if not os.path.lexists(path) or os.path.islink(path):
        return False
    now, copy = os.lstat(path), os.lstat(kept)
    return now.st_ino == entry["ino"] and (now.st_nlink > 1 or (now.st_uid, now.st_gid) != (copy.st_uid, copy.st_gid))


def _cut(path: str, entry: Entry, outcome: Outcome) -> None:
    stat = os.stat(path)
    if stat.st_size < entry["size"]:
        raise OSError(f"it was {entry['size']} bytes long and is {stat.st_size} now")
    if (stat.st_size, stat.st_mtime_ns) != (entry["size"], entry["mtime_ns"]):
        os.truncate(path, entry["size"])
        os.chmod(path, entry["mode"])  # whoever copies onto an empty file copies the mode as well
        os.utime(path, ns=(stat.st_atime_ns, entry["mtime_ns"]))
        outcome["restored"].append(path)
