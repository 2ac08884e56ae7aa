"""Which of the paths a job writes to are looked after, and what a path is called."""

from __future__ import annotations

import os
from typing import Any


class PathScope:
    """Which paths are looked after: lines of text separated by NUL, written by the tuner, read in
    every process of the job.

    Directories are given without a trailing slash and with symbolic links resolved.
    """

    def __init__(
        self,
        workdir: str,
        own: tuple[str, ...],
        caches: tuple[str, ...],
        temporary: tuple[str, ...],
        keep: tuple[str, ...],
        libraries: tuple[str, ...] = (),
    ) -> None:
        self.workdir = workdir
        self.own = own  # the tuner's: the run directory
        # what programs keep between runs; a checkpoint there is a result of the job's
        self.caches = caches
        # the same, of one library each: also its checkpoints are the library's
        self.libraries = libraries
        self.temporary = temporary  # outside the working directory, only checkpoints count there
        self.keep = keep  # patterns the user gave: the job may write there

    def dump(self) -> str:
        rows = [
            ("workdir", self.workdir),
            *(("own", p) for p in self.own),
            *(("cache", p) for p in self.caches),
        ]
        rows += [("library", p) for p in self.libraries]
        rows += [*(("temporary", p) for p in self.temporary), *(("keep", p) for p in self.keep)]
        return "\0".join(f"{kind}={path}" for kind, path in rows)

    @classmethod
    def load(cls, text: str) -> PathScope:
        found: dict[str, list[str]] = {
            "workdir": [],
            "own": [],
            "cache": [],
            "temporary": [],
            "keep": [],
            "library": [],
        }
        for row in text.split("\0"):
            kind, _, path = row.partition("=")
            found[kind].append(path)
        rest = (tuple(found[kind]) for kind in ("own", "cache", "temporary", "keep", "library"))
        return cls(found["workdir"][0], *rest)

    def with_caches(self, *folders: str) -> PathScope:
        """With these as well, but for those that hold the working directory: ``/usr`` may hold
        ``/usr/src/app``.
        """
        more = tuple(os.path.realpath(f) for f in folders)
        caches = tuple(f for f in (*self.caches, *more) if not below(self.workdir, (f,)))
        libraries = tuple(f for f in self.libraries if not below(self.workdir, (f,)))
        return PathScope(self.workdir, self.own, caches, self.temporary, self.keep, libraries)

    def holds(self, path: str, checkpoint: bool = False) -> bool:
        """Whether ``path`` (absolute, links resolved) is looked after. ``checkpoint``: a program
        writes a model there.
        """
        if (
            below(path, self.own)
            or below(path, self.libraries)
            or "__pycache__" in path
            or self.kept(path)
        ):
            return False
        if below(path, self.caches):
            return checkpoint
        return below(path, (self.workdir,)) or checkpoint or not below(path, self.temporary)

    def kept(self, path: str) -> bool:
        """Whether the user lets the job write there."""
        if not self.keep:
            return False
        from fnmatch import fnmatchcase

        name = os.path.relpath(path, self.workdir)
        fits = (fnmatchcase(path if os.path.isabs(p) else name, p) for p in self.keep)
        return any(fits) or below(
            path, tuple(os.path.normpath(os.path.join(self.workdir, p)) for p in self.keep)
        )


def resolved(path: Any, folder: int = -1, last: bool = True) -> str:
    """``path`` as the file system has it: absolute, symbolic links followed (``last``: also that of
    the final name).

    Args:
        folder: descriptor of the directory it is relative to; below zero: the working directory.
    """
    text = os.fsdecode(os.fspath(path))
    if not os.path.isabs(text):
        base = (
            os.readlink(f"/proc/self/fd/{folder}")
            if isinstance(folder, int) and folder >= 0
            else os.getcwd()
        )
        text = os.path.join(base, text)
    if last:
        return os.path.realpath(text)
    text = text.rstrip(os.sep)
    return os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))


def below(path: str, folders: tuple[str, ...]) -> bool:
    return any(
        path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders
    )
