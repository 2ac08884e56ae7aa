"""Which of the paths a job writes to are looked after, and what a path is called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple


class PathScope(NamedTuple):
    """Which paths are looked after: written by the tuner, read in every process of the job.

    Directories are given without a trailing slash and with symbolic links resolved.
    """

    workdir: str
    own: tuple[str, ...] = ()  # the tuner's: the run directory
    # what programs keep between runs; a checkpoint there is a result of the job's
    cache: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()  # outside the working directory, only checkpoints count there
    keep: tuple[str, ...] = ()  # patterns the user gave: the job may write there
    # caches of one library each: also its checkpoints are the library's
    library: tuple[str, ...] = ()

    def dump(self) -> str:
        """Rows ``<field>=<path>`` separated by NUL: no process of the job imports json for this."""
        rows = [f"workdir={self.workdir}"]
        for kind, paths in zip(self._fields[1:], self[1:], strict=True):
            rows += [f"{kind}={path}" for path in paths]
        return "\0".join(rows)

    @classmethod
    def load(cls, text: str) -> PathScope:
        found: dict[str, list[str]] = {kind: [] for kind in cls._fields}
        for row in text.split("\0"):
            kind, _, path = row.partition("=")
            found[kind].append(path)
        (workdir,), *rest = found.values()
        return cls(workdir, *map(tuple, rest))

    def with_caches(self, *folders: str) -> PathScope:
        """With these as well, but for those that hold the working directory: ``/usr`` may hold
        ``/usr/src/app``.
        """
        more = (*self.cache, *map(os.path.realpath, folders))
        cache, library = (
            tuple(f for f in group if not below(self.workdir, (f,)))
            for group in (more, self.library)
        )
        return self._replace(cache=cache, library=library)

    def holds(self, path: str, checkpoint: bool = False) -> bool:
        """Whether ``path`` (absolute, links resolved) is looked after. ``checkpoint``: a program
        writes a model there.
        """
        if (
            below(path, self.own)
            or below(path, self.library)
            or "__pycache__" in path
            or self.kept(path)
        ):
            return False
        if below(path, self.cache):
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


def above(path: str) -> Iterator[str]:
    """The directories above ``path``, the nearest first."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder
