"""Two commits of one repository as two sides: a git worktree each, removed afterwards.

A worktree holds only what is committed. Data and environments that git does not track stay where
they are: name them by absolute paths. Paths of tracked files are those of the worktree on either
side, wherever they appear: in the command, in variables, in PYTHONPATH, and where a package of the
repository is installed as editable.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.disk import lock
from autotune.errors import InputError
from autotune.export.fingerprint import ask_python, interpreter
from autotune.job import command as commands
from autotune.job.spec import JobSpec
from autotune.judging.sides import Side

LONGEST_S = 300.0  # limit for one git command
# Prints the directories a Python imports from, and those where editable installs find packages.
_PROBE = """
import json, sys
from pathlib import Path
found = [p for p in sys.path if p]
for finder in sys.meta_path:
    module = sys.modules.get(getattr(finder, "__module__", ""))
    mapping = getattr(module, "MAPPING", None)
    for name, path in mapping.items() if isinstance(mapping, dict) else ():
        found.append(str(Path(path).parents[name.count(".")]))
print(json.dumps(found))
"""


@contextmanager
def checked_out(
    side: Side, refs: Sequence[str], folder: Path, warn: Callable[[str], None] = print
) -> Iterator[tuple[Side, ...]]:
    """Yield ``side`` as it is in each of ``refs``; meanwhile, the worktrees are in ``folder``.

    Args:
        warn: called for a worktree that cannot be removed.

    Raises:
        InputError: no repository, no such commit, uncommitted changes, a commit without the job's
            directory or program, or another judgement is using ``folder``.
    """
    root = Path(_git(side.spec.workdir, "rev-parse", "--show-toplevel")).resolve()
    if changes := _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise InputError(
            "uncommitted changes:"
            f" {', '.join(line[2:].strip() for line in changes.splitlines()[:3])}",
            where=str(root),
            expected="a clean tree, so that exactly the commits are judged",
            remedy="commit or stash them",
        )
    commits = [_commit(root, ref) for ref in refs]
    made: list[Path] = []
    with _alone(folder):
        _git(root, "worktree", "prune")
        try:
            for name, commit in zip("AB", commits, strict=True):
                place = folder / name
                _remove(root, place)  # left by a run that was killed
                _git(root, "worktree", "add", "--detach", "--force", str(place), commit)
                made.append(place)
            yield tuple(
                replace(_moved(side, name, ref, root, place), commit=commit)
                for name, ref, place, commit in zip("AB", refs, made, commits, strict=True)
            )
        finally:
            for place in made:
                try:
                    _remove(root, place)
                except InputError as error:  # the verdict matters more than a leftover worktree
                    warn(f"the worktree {place} could not be removed: {error.found}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock ``folder``: another judgement would replace these worktrees while they are measured.

    Raises:
        InputError: another judgement holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=str(folder),
            expected="a writable directory",
            remedy="choose another one with --run-dir",
        ) from None
    with file:
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another judgement is using these worktrees",
                where=str(folder),
                expected="one judgement per directory",
                remedy="wait for it, stop it, or choose another directory with --run-dir",
            ) from None
        yield


def _moved(side: Side, name: str, ref: str, root: Path, place: Path) -> Side:
    """``side`` in the worktree ``place`` instead of the repository ``root``."""
    home = side.spec.workdir.resolve()
    workdir = place / home.relative_to(root)
    if not workdir.is_dir():
        raise InputError(
            f"no directory {workdir.relative_to(place)} in this commit",
            where=ref,
            expected="the job's directory",
        )
    words = tuple(_word(word, home, root, place) for word in side.spec.command)
    env = {name: _inside(value, root, place) for name, value in side.spec.env.items()}
    spec = replace(side.spec, command=words, workdir=workdir, env=env)
    commands.check_command(spec.command, workdir, spec.env, f"{ref}: command")
    spec = replace(spec, env={**env, **_python_path(spec, root, place)})
    return replace(side, name=name, what=ref, spec=spec, worktree=place)


def _word(word: str, home: Path, root: Path, place: Path) -> str:
    """Point a word of the command at the worktree if it names a file of the repository.

    Files that the worktree lacks (data, an environment) stay. The file may follow the sign in
    ``--config=conf/base.yaml``.
    """
    flag, sign, name = word.rpartition("=")
    path = Path(os.path.normpath(home / name))
    # the last part is not resolved: the python of an environment is a symlink
    path = Path(os.path.realpath(path.parent)) / path.name
    if "/" not in name or not path.is_relative_to(root) or not os.path.exists(path):
        return _inside(word, root, place)
    there = place / path.relative_to(root)
    if not there.exists():
        return f"{flag}{sign}{path}"
    return f"{flag}{sign}{there}" if Path(name).is_absolute() else word


def _inside(text: str, root: Path, place: Path) -> str:
    """Replace absolute paths in ``text`` by the worktree's, if it has them too.

    For variables such as PYTHONPATH and for shell command lines.
    """

    def moved(match: re.Match[str]) -> str:
        rest = match[1] or ""
        # a name with spaces goes on to the closing quote, or to the end
        whole = re.split(r"['\":\n]", text[match.end() - len(rest) :], maxsplit=1)[0]
        there = any(os.path.exists(f"{place}{name}") for name in (rest, whole))
        return f"{place}{rest}" if there else match[0]

    return re.sub(
        rf"(?<![\w./-]){re.escape(str(root))}(?![\w.-])(/[^\s:;,'\"|&<>()]*)?", moved, text
    )


def _python_path(spec: JobSpec, root: Path, place: Path) -> dict[str, str]:
    """PYTHONPATH, if the job's Python would import the repository's code instead of the worktree's.

    The repository is then on an exported PYTHONPATH, or installed as editable (``pip install -e``).
    """
    environment = {**os.environ, **spec.env}
    before = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = path = _inside(before, root, place)
    program = interpreter(spec.command, environment, spec.workdir) or sys.executable
    found: Any = ask_python(program, _PROBE, environment, spec.workdir) or []
    own = Path(os.path.realpath(place))
    for directory in map(Path, map(os.path.realpath, found)):
        if directory.is_relative_to(root) and not directory.is_relative_to(own):
            there = place / directory.relative_to(root)
            if there.is_dir():
                path = os.pathsep.join(filter(None, [path, str(there)]))
    return {"PYTHONPATH": path} if path != before else {}


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
    if not place.exists():
        return
    try:
        _git(root, "worktree", "remove", "--force", "--force", str(place))
    except InputError:
        link = place / ".git"
        if not (link.is_file() and link.read_text(errors="replace").startswith("gitdir:")):
            raise
        # a worktree that a judgement of another clone left: nothing is lost
        shutil.rmtree(place)


def _git(where: Path, *words: str) -> str:
    """Run git and return its output.

    Raises:
        InputError: git is missing, fails or takes too long.
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
        raise InputError(
            f"git {words[0]} took too long",
            where=str(where),
            expected=f"an answer within {LONGEST_S:g} s",
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(said[-1] if said else f"git {words[0]} failed", where=str(where))
    return done.stdout.strip()
