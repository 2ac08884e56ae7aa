"""Digests of the job's code when a run began: a resumed run must not compare two versions of it.

Covered are the files that the command names (script, configuration) and the Python files beside the
program. That is where jobs are edited, but not all that a job imports: a difference proves a
change, but no difference proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autotune_spaces.shell_line import shell_line

MOST_FILES = 500  # per directory; a program has fewer
MOST_BYTES = 2**20  # per file; larger files are data
CODE = (".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".gin")


def digests(command: Sequence[str], workdir: Path) -> dict[str, str]:
    """File, relative to ``workdir``, -> digest of its contents. Unreadable files are left out."""
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
    """The files whose contents changed, or that are gone. New files do not count."""
    return sorted(name for name, digest in before.items() if now.get(name) != digest)


def _words(command: Sequence[str]) -> list[str]:
    at = shell_line(command)
    if at is None:
        return list(command)
    try:
        return shlex.split(command[at])
    except ValueError:
        return command[at].split()


def _files(words: Sequence[str], workdir: Path) -> Iterator[Path]:
    for before, word in zip(["", *words], words, strict=False):
        module = before == "--module" or re.fullmatch(r"-[A-Za-z]*m", before)
        named = workdir / (word.replace(".", "/") if module else word.rpartition("=")[2])
        try:
            if named.is_dir():  # a package: python -m PACKAGE, python FOLDER
                named = named / "__main__.py"
            elif module:
                named = named.with_name(f"{named.name}.py")
            if named.suffix not in CODE or not named.is_file():
                continue
            yield named
            if named.suffix in (".py", ".sh"):
                yield from [
                    p for p in sorted(named.parent.glob("*.py"))[:MOST_FILES] if p.is_file()
                ]
        except (OSError, ValueError):  # a word too long for a name, or with a NUL in it
            continue
