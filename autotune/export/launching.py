"""From a tuned.yaml to a running job: the command, its environment, and the agent's instructions.

    tuned.yaml ──▶ plan ──▶ argv, env, workdir, session.json ──▶ execve: this process becomes the job

Because the process is replaced, signals, exit code, stdin, stdout and stderr are directly the
job's. It also means that nothing can clean up afterwards: session.json is stored in the user's
cache under a hash of its content, so launching the same settings repeatedly leaves one file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import InputError
from autotune.export.tuned import TunedConfig, TunedKnob
from autotune_spaces.base import Knob, NotApplicable, Scope, Start, Value
from autotune_spaces.codec import encode
from autotune_spaces.knobs import create
from autotune_spaces.knobs.batch_size import BatchSize
from autotune_spaces.shell_line import filled, filled_command, shell_line
from autotune_spaces.space import command_line
from autotune_trials.paths import SessionPaths, publish
from autotune_trials.protocol.messages import (
    SESSION_VARIABLE,
    KnobChoice,
    SessionConfig,
    SessionMode,
)
from autotune_trials.session.launch_environment import INJECT
from autotune_trials.supervisor.process_tags import MARK_VARIABLE


@dataclass(frozen=True)
class Launch:
    """A planned launch. ``session``: the agent's instructions, None if no knob needs the agent."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: Path
    session: SessionConfig | None


def knobs_of(tuned: TunedConfig) -> dict[str, Knob]:
    """The knobs of ``tuned``, in file order."""
    return {name: create(name, _options(name, choice)) for name, choice in tuned.knobs.items()}


def _options(name: str, choice: TunedKnob) -> dict[str, Value]:
    own = {"own_batch_size": choice.was} if name == BatchSize.name and choice.was else {}
    return {**own, **choice.options}


def needs_agent(knob: Knob) -> bool:
    """Whether the agent must apply it: a live knob, or one whose variable only the agent reads."""
    kind = type(knob)
    return (
        knob.scope is Scope.LIVE
        or kind.at_import is not Knob.at_import
        or kind.at_start is not Knob.at_start
    )


def _reports_effect(knob: Knob) -> bool:
    """Whether it is a process knob that can check inside the job whether it took effect."""
    return knob.scope is Scope.PROCESS and type(knob).effect is not Knob.effect


def needs_launch(knob: Knob, value: Value) -> bool:
    """Whether it needs more than the variables and arguments a plain script can set."""
    return needs_agent(knob) or value in knob.looked_up


def uses_launch(tuned: TunedConfig) -> bool:
    """Whether a script that runs the job must use ``autotune launch``."""
    return any(needs_launch(knob, tuned.knobs[n].value) for n, knob in knobs_of(tuned).items())


def plan(
    tuned: TunedConfig,
    extra: Sequence[str] = (),
    *,
    base: Mapping[str, str],
    seed: int = 0,
    out: Path | None = None,
    partial: bool = False,
) -> Launch:
    """Plan how to run ``tuned``.

    Args:
        extra: words appended to the command.
        base: the environment to launch from.
        seed: the value of ``{seed}`` in the command.
        out: the value of ``{trial_dir}``; by default ``out`` in the job's directory.
        partial: omit missing secrets instead of raising.

    Raises:
        InputError: a secret of the job is not in the environment, a knob cannot be set here, or
            ``extra`` cannot be appended.
    """
    knobs = knobs_of(tuned)
    values = {name: choice.value for name, choice in tuned.knobs.items()}
    why = ": needed by the job; tuned.yaml holds no secrets"
    secrets = secrets_of(tuned, base, why, partial=partial)
    places = {"seed": str(seed), "trial_dir": str(out or tuned.workdir / "out")}
    words = filled_command(command_line(tuned.command, knobs.values(), values), places)
    if extra and shell_line(words) is not None:
        raise InputError(
            "the job is a shell command line; arguments cannot be appended to it",
            where="-- " + " ".join(extra),
            expected="a command given as a program and its arguments",
            remedy="add them to the line under 'command' in tuned.yaml",
        )
    argv = with_secrets(words, secrets) + list(extra)
    env = {**base, **{name: filled(value, places) for name, value in tuned.env.items()}}
    start = _prepared(Start(tuple(argv), env, str(tuned.workdir)), knobs, values)
    session = None
    if any(needs_agent(k) for k in knobs.values()):
        choices = {n: KnobChoice(n, values[n], dict(k.options)) for n, k in knobs.items()}
        session = SessionConfig(
            SessionMode.LAUNCH,
            "",
            knobs=tuple(choices[n] for n, k in knobs.items() if k.scope is Scope.LIVE),
            process_knobs=tuple(choices[n] for n, k in knobs.items() if _reports_effect(k)),
            loader_key=tuned.provenance.loader_key,
        )
    return Launch(start.argv, start.env, tuned.workdir, session)


def with_secrets(words: Sequence[str], secrets: Mapping[str, str]) -> list[str]:
    """``words`` with secrets in place of ``${NAME}``; a shell line stays: its shell expands it."""
    line = shell_line(words)
    return [
        word if at == line else re.sub(r"\$\{(\w+)\}", lambda m: secrets.get(m[1], m[0]), word)
        for at, word in enumerate(words)
    ]


def _prepared(start: Start, knobs: Mapping[str, Knob], values: Mapping[str, Value]) -> Start:
    """``start`` with the process knobs set."""
    for name, knob in knobs.items():
        if knob.scope is not Scope.PROCESS:
            continue
        try:
            start = knob.prepare(start, values[name])
        except NotApplicable as reason:
            raise InputError(
                f"{name}={values[name]} cannot be set here: {reason}",
                where=f"knobs.{name}",
                expected="a machine like the one it was tuned on",
                remedy=f"tune again here, or remove {name} from the file",
            ) from None
    return start


def uses_out(tuned: TunedConfig) -> bool:
    """Whether the job uses ``{trial_dir}`` to find out where to write."""
    return any("{trial_dir}" in word for word in (*tuned.command, *tuned.env.values()))


def secrets_of(
    tuned: TunedConfig, base: Mapping[str, str], why: str, *, partial: bool = False
) -> dict[str, str]:
    """The job's secrets from ``base``; ``partial``: those there are.

    Raises:
        InputError: one is not set; ``why`` ends the sentence.
    """
    missing = [name for name in tuned.env_from_launch if name not in base]
    if missing and not partial:
        raise InputError(
            f"{' and '.join(missing)} not set{why}",
            where="environment",
            expected="the variables under env_from_launch",
            remedy=f"export {missing[0]}=… first",
        )
    return {name: base[name] for name in tuned.env_from_launch if name in base}


def write_session(session: SessionConfig) -> Path:
    """Write session.json where the job's processes will find it; return its path."""
    digest = hashlib.sha256(json.dumps(encode(session), sort_keys=True).encode()).hexdigest()[:16]
    root = user_cache() / "autotune" / "launch" / digest
    try:
        return _write_session(session, root)
    except OSError:  # the home directory is not writable, or full
        return _write_session(session, _temporary_directory())


def _write_session(session: SessionConfig, root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} belongs to another user")
    paths = SessionPaths(root)
    # Markers tell the tuner how far each process got. No tuner reads them here, so a plain file
    # takes the place of their directory to keep them from being written.
    if not paths.markers.exists():
        paths.markers.touch()
    text = json.dumps(encode(dataclasses.replace(session, directory=str(root))))
    if not paths.config.is_file() or paths.config.read_bytes() != text.encode():
        publish(paths.config, text)
    return paths.config


def user_cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    found = Path(named) if os.path.isabs(named) else Path(os.path.expanduser("~")) / ".cache"
    return found if found.is_absolute() else _temporary_directory()  # this user has no home


def _temporary_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="autotune-launch-"))


def environment_of(launch: Launch) -> dict[str, str]:
    """The job's environment, including what loads the agent."""
    env = dict(launch.env)
    # set if we are launched from within a session
    for name in (SESSION_VARIABLE, MARK_VARIABLE):
        env.pop(name, None)
    if launch.session is not None:
        env[SESSION_VARIABLE] = str(write_session(launch.session))
        env["PYTHONPATH"] = os.pathsep.join(
            [str(INJECT), *filter(None, [env.get("PYTHONPATH", "")])]
        )
    return env


def become(launch: Launch) -> None:
    """Replace this process by the job. Never returns.

    Raises:
        InputError: the job's directory or program is missing, or the program cannot be started.
    """
    program, env = _enter_workdir(launch)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these signals, and ignored signals stay ignored across execve
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, list(launch.argv), env)
    except (OSError, ValueError) as error:  # ValueError: a NUL in a word or a variable
        raise InputError(
            f"'{launch.argv[0]}' cannot be started: {getattr(error, 'strerror', error)}",
            where="command",
            expected="a program",
        ) from None


def _enter_workdir(launch: Launch) -> tuple[str, dict[str, str]]:
    """Change to the job's directory; return its program's path and its environment.

    Raises:
        InputError: the job's directory or program is missing.
    """
    env = environment_of(launch)
    try:
        os.chdir(launch.workdir)
    except OSError as error:
        raise InputError(
            f"{launch.workdir}: {error.strerror}", where="workdir", expected="the job's directory"
        ) from None
    env["PWD"] = str(launch.workdir)
    word = launch.argv[0]
    program = word if "/" in word else shutil.which(word, path=env.get("PATH"))
    if program is None:
        raise InputError(
            f"the command '{word}' was not found",
            where="command",
            expected="a program on PATH",
            remedy="activate the environment the job runs in",
        )
    return program, env
