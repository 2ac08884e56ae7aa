"""What the job's own code was when a run began: an interrupted run must not compare one version of
it with another.

Looked at are the files that the command names (script, configuration) and the Python files beside
the program. That is where jobs are edited; it is not all that a job imports, so a difference proves
a change, and no difference proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MOST_FILES = 500  # of one directory: more is no program
MOST_BYTES = 2**20  # of one file: more is data
CODE = (".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".gin")


def digests(command: Sequence[str], workdir: Path) -> dict[str, str]:
    """File, relative to ``workdir``, -> digest of what it holds. What cannot be read is left out."""
    found: dict[str, str] = {}
    for path in _files(_words(command), workdir):
        try:
            if path.stat().st_size <= MOST_BYTES:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[os.path.relpath(path, workdir)] = digest[:16]
        except (OSError, ValueError):
            continue
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The files that hold something else, or are gone. New ones are none of an old version's."""
    return sorted(name for name, digest in before.items() if now.get(name) != digest)


def _words(command: Sequence[str]) -> list[str]:
    if len(command) == 3 and command[1] == "-c":  # a line for a shell
        try:
            return shlex.split(command[2])
        except ValueError:
            return command[2].split()
    return list(command)


def _files(words: Sequence[str], workdir: Path) -> Iterator[Path]:
    for before, word in zip(["", *words], words, strict=False):
        named = workdir / (
            word.replace(".", "/") + ".py"
            if before in ("-m", "--module")
            else word.rpartition("=")[2]
        )
        try:
            if named.suffix not in CODE or not named.is_file():
                continue
            yield named
            if named.suffix == ".py":
                yield from [
                    p for p in sorted(named.parent.glob("*.py"))[:MOST_FILES] if p.is_file()
                ]
        except (OSError, ValueError):  # a word too long for a name, or with a NUL in it
            continue
