"""Decides at which paths the job's writes are undone, and resolves paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple


class PathScope(NamedTuple):
    """The paths at which the job's writes are undone ("in scope"). Written by the tuner, read in
    every process of the job.

    Directories have no trailing slash, and symbolic links are resolved.
    """

    workdir: str
    own: tuple[str, ...] = ()  # the tuner's directories: the run directory
    # files that programs keep between runs; only checkpoints are in scope, as results of the job
    cache: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()  # outside the workdir, only checkpoints are in scope there
    keep: tuple[str, ...] = ()  # patterns given by the user: the job may write there
    # caches of one library each: checkpoints there belong to the library, so nothing is in scope
    library: tuple[str, ...] = ()
    # working directories of sessions that share the ledger
    beside: tuple[str, ...] = ()

    def dump(self) -> str:
        """Rows ``<field>=<path>`` separated by NUL, so that the job's processes need no json."""
        rows = [f"workdir={self.workdir}"]
        for kind, paths in zip(self._fields[1:], self[1:], strict=True):
            rows += [f"{kind}={path}" for path in paths]
        return "\0".join(rows)

    @classmethod
    def read(cls, ledger: str) -> PathScope:
        """The scope of the session with this ledger."""
        places = os.path.join(ledger, "places")
        with open(places, encoding="utf-8", errors="surrogateescape") as file:
            return cls.load(file.read())

    @classmethod
    def load(cls, text: str) -> PathScope:
        found: dict[str, list[str]] = {kind: [] for kind in cls._fields}
        for row in text.split("\0"):
            kind, _, path = row.partition("=")
            found[kind].append(path)
        (workdir,), *rest = found.values()
        return cls(workdir, *map(tuple, rest))

    def with_caches(self, *folders: str) -> PathScope:
        """Add ``folders`` as caches, then drop caches that contain the working directory: ``/usr``
        may contain ``/usr/src/app``.
        """
        more = (*self.cache, *map(os.path.realpath, folders))
        cache, library = (
            tuple(f for f in group if not any(below(workdir, (f,)) for workdir in self._workdirs))
            for group in (more, self.library)
        )
        return self._replace(cache=cache, library=library)

    def joined(self, other: PathScope) -> PathScope:
        """The scope of two sessions that share a ledger."""
        both = {
            field: tuple(dict.fromkeys((*getattr(self, field), *getattr(other, field))))
            for field in self._fields[1:]
        }
        both["beside"] += (other.workdir,) if other.workdir != self.workdir else ()
        return PathScope(self.workdir, **both).with_caches()

    @property
    def _workdirs(self) -> tuple[str, ...]:
        return (self.workdir, *self.beside)

    def holds(self, path: str, checkpoint: bool = False) -> bool:
        """Whether ``path`` (absolute, links resolved) is in scope. ``checkpoint``: a model is saved
        there.
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
        return below(path, self._workdirs) or checkpoint or not below(path, self.temporary)

    def kept(self, path: str) -> bool:
        """Whether the user allows the job to write to ``path``."""
        return bool(self.keep) and any(self._keeps(path, workdir) for workdir in self._workdirs)

    def _keeps(self, path: str, workdir: str) -> bool:
        from fnmatch import fnmatchcase

        name = os.path.relpath(path, workdir)
        fits = (fnmatchcase(path if os.path.isabs(p) else name, p) for p in self.keep)
        return any(fits) or below(
            path, tuple(os.path.normpath(os.path.join(workdir, p)) for p in self.keep)
        )


def resolved(path: Any, folder: int = -1, last: bool = True) -> str:
    """``path`` made absolute, with symbolic links followed.

    Args:
        folder: descriptor of the directory it is relative to; negative: the working directory.
        last: also follow the last component if it is a link.
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
    """The directories above ``path``, nearest first."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder
