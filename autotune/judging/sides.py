"""The two sides of a judgement, each a job as it stands.

job.yaml                       the job
tuned.yaml, a run              the job with its tuned settings
job.yaml + --b-command, --b-env, --b-python     B is A with that changed
job.yaml + --base-ref, --head-ref               the job in two commits (refs.py)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.errors import InputError
from autotune.export.fingerprint import here
from autotune.export.launching import knobs_of, secrets_of, with_secrets
from autotune.export.load import find_tuned, load_tuned
from autotune.job import command as commands
from autotune.job.load import load_job
from autotune.job.sources import digests
from autotune.job.spec import JobSpec
from autotune.job.yaml_lines import YamlMistake, read_yaml
from autotune.secrets import mask_command
from autotune_spaces.base import SearchSpace, Value

PYTHON = re.compile(r"python[\d.]*")
DEFAULT_MINUTES = 10.0
TUNED = "tuned"  # the preset of a side that came from a tuned.yaml
# These belong to the judgement, not to a side; a tuned.yaml has none of them.
SHARED = ("convergence", "objective", "planned_steps", "constraints", "side_effects")
TIMEOUTS = ("startup_timeout_s", "hang_timeout_s")


@dataclass(frozen=True)
class Side:
    """One side: a job, and the knobs that are set in it."""

    name: str  # "A" or "B"
    what: str  # in words
    spec: JobSpec
    knobs: dict[str, Value] = field(default_factory=dict)
    loader_key: str = ""
    worktree: Path | None = None  # of its commit
    commit: str = ""

    @property
    def root(self) -> Path:
        """The directory that paths of its source are shown relative to: its repository, if any."""
        from autotune.report.sarif import top_of

        return self.worktree or top_of(self.spec.workdir)

    @property
    def is_tuned(self) -> bool:
        """Whether it came from a tuned.yaml, which has settings and no limits."""
        return self.spec.search_space.preset == TUNED

    @property
    def command(self) -> str:
        return " ".join(mask_command(self.spec.command))


@dataclass(frozen=True)
class Change:
    """How B differs from A."""

    command: str = ""
    env: Sequence[str] = ()  # "NAME=VALUE"
    python: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.command or self.env or self.python)


def load_side(name: str, path: Path) -> Side:
    """Load the side that a job file, a tuned.yaml or a run (its directory or name) describes.

    Raises:
        InputError, HookError: see :func:`autotune.job.load.load_job`.
    """
    file = find_tuned(path)
    if file == path and not _is_tuned(file):
        return Side(name, str(path), load_job(path))
    tuned = load_tuned(file)
    secrets = secrets_of(tuned, os.environ, f"; {path} does not contain secrets")
    spec = JobSpec(
        name=tuned.name,
        command=tuple(with_secrets(tuned.command, secrets)),
        workdir=tuned.workdir,
        env=dict(tuned.env),
        search_space=SearchSpace(TUNED, tuple(knobs_of(tuned).values())),
        source=file.resolve(),
    )
    commands.check_command(spec.command, spec.workdir, spec.env, f"{path}: command")
    values = {knob: choice.value for knob, choice in tuned.knobs.items()}
    return Side(name, str(path), spec, values, tuned.provenance.loader_key)


def changed(a: Side, change: Change) -> Side:
    """Make B: ``a`` with ``change``.

    Raises:
        InputError: something that is not a variable, a command or an interpreter.
    """
    words, env, what = a.spec.command, dict(a.spec.env), []
    if change.command:
        try:
            words = commands.split(change.command)
        except ValueError as error:
            raise InputError(
                str(error), where="--b-command", expected="a program and its arguments"
            ) from None
        what.append(f"--b-command {' '.join(mask_command(words))}")
    for assignment in change.env:
        name, sign, value = assignment.partition("=")
        if not sign or not name.isidentifier():
            raise InputError(
                "not a variable assignment", where=f"--b-env {name}", expected="NAME=VALUE"
            )
        env[name] = value
        what.append(f"--b-env {name}=…")
    if change.python:
        words = (_interpreter(words, change.python), *words[1:])
        what.append(f"--b-python {change.python}")
    spec = replace(a.spec, command=words, env=env)
    commands.check_command(spec.command, spec.workdir, spec.env, ", ".join(what))
    return replace(a, name="B", what=f"A with {', '.join(what)}", spec=spec)


def common(a: Side, b: Side, minutes: float | None = None) -> tuple[Side, Side]:
    """Give both sides the settings that belong to the judgement, not to a side.

    These are tolerance, steps, metrics, objective and what is put back. They come from A's job
    file, or from B's if A is a tuned.yaml.

    Args:
        minutes: time budget; None: 10, or the job file's if it is smaller.

    Raises:
        InputError: a side that does not run on this machine alone, or is tuned for energy.
    """
    for side in (a, b):
        if side.spec.executor.kind != "local":
            raise InputError(
                f"judge runs both sides on this machine; {side.name} has executor:"
                f" {side.spec.executor.kind}",
                where=side.what,
                expected="executor: local",
                remedy="run it on one machine of the cluster",
            )
    owner = b if a.is_tuned else a
    if owner.spec.objective == "energy":
        raise InputError(
            "judge compares times, but the objective is energy",
            where=owner.what,
            expected="objective: throughput, time_to_train or cost",
        )
    budget = owner.spec.budget
    limit = min(budget.minutes, DEFAULT_MINUTES) if minutes is None else minutes
    shared = {key: getattr(owner.spec, key) for key in SHARED} | {
        "name": a.spec.name,
        "budget": replace(budget, minutes=limit),
        "second_objective": "",
    }
    timeouts = {key: getattr(owner.spec, key) for key in TIMEOUTS}

    def with_shared(side: Side) -> Side:
        values = shared | (timeouts if side.is_tuned else {})
        return replace(side, spec=replace(side.spec, **values))

    return with_shared(a), with_shared(b)


def digest(sides: Sequence[Side], loss: str) -> str:
    """Identity of a judgement, which decides whether it is resumed.

    It includes the code of both sides and their versions of Python and torch.
    """
    import hashlib
    import json

    whole = [
        [
            side.spec.digest(),
            sorted(side.knobs.items()),
            side.loader_key,
            side.commit,
            digests(side.spec.command, side.spec.workdir),
            _versions(side.spec),
        ]
        for side in sides
    ]
    text = json.dumps([whole, loss], default=repr, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _versions(spec: JobSpec) -> tuple[str, str]:
    machine = here(spec.command, {**os.environ, **spec.env}, spec.workdir)
    return machine.python_version, machine.torch_version


def _is_tuned(path: Path) -> bool:
    """Whether the file has a schema_version, as a tuned.yaml has and a job file has not."""
    try:
        data = read_yaml(path).data
    except (OSError, ValueError, YamlMistake):
        return False  # load_job will say what is wrong
    return isinstance(data, Mapping) and "schema_version" in data


def _interpreter(words: Sequence[str], python: Path) -> str:
    if not PYTHON.fullmatch(Path(words[0]).name):
        raise InputError(
            f"the command begins with {words[0]}, not with python",
            where="--b-python",
            expected="python …",
            remedy="give the whole command with --b-command",
        )
    if not python.is_file() or not os.access(python, os.X_OK):
        raise InputError(
            "not an executable file",
            where=f"--b-python {python}",
            expected="/path/to/venv/bin/python",
        )
    return str(python.absolute())
