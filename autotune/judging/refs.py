"""Two commits of one repository as two sides: a git worktree each, removed afterwards.

A worktree holds what is committed and nothing else. Data and environments that git does not know
stay where they are: name them by absolute paths.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autotune.errors import InputError
from autotune.job import command as commands
from autotune.judging.sides import Side

LONGEST_S = 300.0  # a checkout may take


@contextmanager
def checked_out(side: Side, refs: Sequence[str], folder: Path) -> Iterator[tuple[Side, ...]]:
    """``side`` as it is in each of ``refs``; the worktrees lie in ``folder`` meanwhile.

    Raises:
        InputError: no repository, no such commit, changes that are not committed, or a commit
            without the job's directory or program.
    """
    root = Path(_git(side.spec.workdir, "rev-parse", "--show-toplevel")).resolve()
    if changes := _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise InputError(
            "changes that are not committed:"
            f" {', '.join(line[2:].strip() for line in changes.splitlines()[:3])}",
            where=str(root),
            expected="a clean tree, so that what is judged is what the commits hold",
            remedy="commit or stash them",
        )
    commits = [_commit(root, ref) for ref in refs]
    _git(root, "worktree", "prune")
    made: list[Path] = []
    try:
        for name, commit in zip("AB", commits, strict=True):
            place = folder / name
            _remove(root, place)  # of a run that was killed
            _git(root, "worktree", "add", "--detach", "--force", str(place), commit)
            made.append(place)
        yield tuple(
            replace(_moved(side, name, ref, root, place), commit=commit)
            for name, ref, place, commit in zip("AB", refs, made, commits, strict=True)
        )
    finally:
        for place in made:
            _remove(root, place)


def _moved(side: Side, name: str, ref: str, root: Path, place: Path) -> Side:
    """``side`` in the worktree ``place`` instead of the repository ``root``."""
    workdir = place / side.spec.workdir.resolve().relative_to(root)
    if not workdir.is_dir():
        raise InputError(
            f"no directory {workdir.relative_to(place)} in it",
            where=ref,
            expected="the job's directory",
        )
    words = [_word(word, side.spec.workdir.resolve(), root, place) for word in side.spec.command]
    spec = replace(side.spec, command=tuple(words), workdir=workdir)
    commands.check_command(spec.command, workdir, spec.env, f"{ref}: command")
    return replace(side, name=name, what=ref, spec=spec, worktree=place)


def _word(word: str, workdir: Path, root: Path, place: Path) -> str:
    """Files of the repository are those of the worktree; what git does not know (data, an
    environment) stays.
    """
    path = Path(os.path.normpath(workdir / word))  # not resolved: an environment's python is a link
    if "/" not in word or not path.is_relative_to(root) or not path.exists():
        return word
    there = place / path.relative_to(root)
    if not there.exists():
        return str(path)
    return str(there) if Path(word).is_absolute() else word


def _commit(root: Path, ref: str) -> str:
    try:
        return _git(
            root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
        )
    except InputError:
        raise InputError(
            "no such commit",
            where=ref,
            expected="a branch, a tag or a commit of this repository",
            remedy="in a shallow clone, fetch it first (git fetch --depth=1 origin REF)",
        ) from None


def _remove(root: Path, place: Path) -> None:
    if place.exists():
        _git(root, "worktree", "remove", "--force", "--force", str(place))


def _git(where: Path, *words: str) -> str:
    """What git prints.

    Raises:
        InputError: git is not there, or says no.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(where), *words], capture_output=True, text=True, timeout=LONGEST_S
        )
    except FileNotFoundError:
        raise InputError(
            "git is not installed", where="--base-ref", expected="git on PATH"
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"git {words[0]} took too long", where=str(where)) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(said[-1] if said else f"git {words[0]} failed", where=str(where))
    return done.stdout.strip()
