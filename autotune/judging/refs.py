"""Two commits of one repository as two sides: a git worktree each, removed afterwards.

A worktree holds what is committed and nothing else. Data and environments that git does not know
stay where they are: name them by absolute paths. Paths of what git knows are those of the worktree
on either side, wherever they stand: in the command, in variables, in PYTHONPATH, and where a package
of the repository is installed as editable.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autotune.errors import InputError
from autotune.export.fingerprint import interpreter
from autotune.job import command as commands
from autotune.job.spec import JobSpec
from autotune.judging.sides import Side

LONGEST_S = 300.0  # a checkout may take
PROBE_S = 20.0
# The directories a Python imports from, and those an editable install finds packages in.
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
    """``side`` as it is in each of ``refs``; the worktrees lie in ``folder`` meanwhile.

    Args:
        warn: is told of a worktree that cannot be removed.

    Raises:
        InputError: no repository, no such commit, changes that are not committed, a commit without
            the job's directory or program, or another judgement is using ``folder``.
    """
    root = Path(_git(side.spec.workdir, "rev-parse", "--show-toplevel")).resolve()
    if changes := _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise InputError(
            "uncommitted changes:"
            f" {', '.join(line[2:].strip() for line in changes.splitlines()[:3])}",
            where=str(root),
            expected="a clean tree, so that what is judged is what the commits hold",
            remedy="commit or stash them",
        )
    commits = [_commit(root, ref) for ref in refs]
    made: list[Path] = []
    with _alone(folder):
        _git(root, "worktree", "prune")
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
                try:
                    _remove(root, place)
                except InputError as error:  # a verdict counts for more than what is left behind
                    warn(f"the worktree {place} could not be removed: {error.found}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold ``folder``: another judgement would replace these worktrees while they are measured.

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
            expected="a directory this user may write to",
            remedy="name another one with --run-dir",
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another judgement is using these worktrees",
                where=str(folder),
                expected="one judgement a directory",
                remedy="wait for it, stop it, or name another directory with --run-dir",
            ) from None
        yield


def _moved(side: Side, name: str, ref: str, root: Path, place: Path) -> Side:
    """``side`` in the worktree ``place`` instead of the repository ``root``."""
    home = side.spec.workdir.resolve()
    workdir = place / home.relative_to(root)
    if not workdir.is_dir():
        raise InputError(
            f"no directory {workdir.relative_to(place)} in it",
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
    """Files of the repository are those of the worktree; what git does not know (data, an
    environment) stays. Also behind the sign in ``--config=conf/base.yaml``.
    """
    flag, sign, name = word.rpartition("=")
    path = Path(os.path.normpath(home / name))
    # the last part is not resolved: an environment's python is a link
    path = Path(os.path.realpath(path.parent)) / path.name
    if "/" not in name or not path.is_relative_to(root) or not path.exists():
        return _inside(word, root, place)
    there = place / path.relative_to(root)
    if not there.exists():
        return f"{flag}{sign}{path}"
    return f"{flag}{sign}{there}" if Path(name).is_absolute() else word


def _inside(text: str, root: Path, place: Path) -> str:
    """``text`` with the absolute paths in it of what the worktree holds, too, as paths there: of a
    variable such as PYTHONPATH, of a line for a shell.
    """

    def moved(match: re.Match[str]) -> str:
        there = place / (match[1] or "").strip("/")
        return str(there) if there.exists() else match[0]

    return re.sub(
        rf"(?<![\w./-]){re.escape(str(root))}(?![\w.-])(/[^\s:;,'\"|&<>()]*)?", moved, text
    )


def _python_path(spec: JobSpec, root: Path, place: Path) -> dict[str, str]:
    """PYTHONPATH where the job's Python would import the repository's code instead of the
    worktree's: it is exported, or installed as editable (``pip install -e``).
    """
    environment = {**os.environ, **spec.env}
    before = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = path = _inside(before, root, place)
    program = interpreter(spec.command, environment, spec.workdir) or sys.executable
    try:
        done = subprocess.run(
            [program, "-c", _PROBE],
            cwd=spec.workdir,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            text=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        found = []  # the job itself will say what is wrong with its Python
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
        raise InputError(
            f"git {words[0]} took too long",
            where=str(where),
            expected=f"an answer within {LONGEST_S:g} s",
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(said[-1] if said else f"git {words[0]} failed", where=str(where))
    return done.stdout.strip()
