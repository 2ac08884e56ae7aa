"""job.yaml to :class:`~autotune.job.spec.JobSpec`.

    read_yaml ─▶ JobFile (types, bounds: validation.py) ─▶ words, placeholders, knobs ─▶ JobSpec ─▶ does the command exist?
                       └───────────────── every mistake of the file, with its line ─────────┘

Nothing is started and nothing is written. The contents of the file are checked first, all at once.
Checks of the machine (the program, its torch, the run directory) follow, because they only make
sense for a file that can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autotune.errors import InputError
from autotune.job import command as commands
from autotune.job.mistakes import Mistake, listing, nearest, to_error
from autotune.job.schema import Convergence as ParsedConvergence
from autotune.job.schema import Executor as ParsedExecutor
from autotune.job.schema import JobFile, shown
from autotune.job.spec import (
    Budget,
    Constraints,
    Convergence,
    ExecutorSpec,
    JobSpec,
    Metric,
    SideEffects,
    Tracking,
)
from autotune.job.validation import validate, without_invalid_keys
from autotune.job.yaml_lines import Document, KeyPath, YamlMistake, read_text, read_yaml
from autotune_spaces.base import SearchSpace

_DEFAULT_NAMES = ("job", "autotune", "tune")  # file names that say nothing about the job
VISIBLE = "CUDA_VISIBLE_DEVICES"
NAME_VARIABLE = "AUTOTUNE_JOB_NAME"  # of a submitted job
NEARLY_EQUAL = 0.85  # difflib's ratio: {trial_dri}, not {log_dir}


def load_job(path: Path | str, *, check: bool = True) -> JobSpec:
    """Read and check a job file.

    Args:
        path: job.yaml; relative paths in it are relative to its folder.
        check: also check whether the command exists and its python has torch (a short subprocess),
            if the job is to run on this machine.

    Raises:
        InputError: with file and line of every mistake.
        HookError: the command keeps the agent out (``python -I``).
    """
    file = Path(path)
    document = _read(file)
    parsed, mistakes = validate(document.data)
    spec, more = _build(parsed or without_invalid_keys(document.data, mistakes), document, file)
    if mistakes or spec is None:
        raise to_error([*mistakes, *more], document, file)
    # with other executors, the machines of the cluster must have the program
    if check and spec.executor.kind == "local":
        place: KeyPath = ("command",)
        where = f"{file}:{document.line(place)}"
        commands.check_command(spec.command, spec.workdir, spec.env, where)
    return spec


def _read(file: Path) -> Document:
    try:
        document = read_yaml(file)
    except YamlMistake as mistake:
        raise InputError(
            str(mistake), where=f"{file}:{mistake.line}", expected=mistake.expected
        ) from None
    except FileNotFoundError:
        raise InputError(
            "no such file", where=str(file), expected="a job.yaml", remedy=_other_file(file)
        ) from None
    except IsADirectoryError:
        inside = file / "job.yaml"
        remedy = (
            f"did you mean '{inside}'?"
            if inside.is_file()
            else "autotune init -- COMMAND writes a job.yaml"
        )
        raise InputError(
            "it is a directory", where=str(file), expected="a job.yaml", remedy=remedy
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", where=str(file), expected="a job.yaml"
        ) from None
    if not isinstance(document.data, dict):
        found = (
            "the file is empty"
            if document.data is None
            else f"the file contains {shown(document.data)}"
        )
        raise InputError(
            found,
            where=f"{file}:1",
            expected="keys and values, at least: command",
            remedy="autotune init -- COMMAND writes one",
        )
    return document


def _other_file(file: Path) -> str:
    try:
        close = nearest(
            file.name, [p.name for p in file.parent.iterdir() if p.suffix in (".yaml", ".yml")]
        )
    except OSError:
        close = ""
    return (
        f"did you mean '{file.parent / close}'?" if close else "autotune init -- COMMAND writes one"
    )


def _build(parsed: JobFile, document: Document, file: Path) -> tuple[JobSpec | None, list[Mistake]]:
    """Build the spec, with the checks that need more than one key, or the disk."""
    mistakes: list[Mistake] = []
    home = file.resolve().parent
    workdir = _directory(home, parsed.workdir)
    if workdir is None:
        mistakes.append(
            Mistake(
                ("workdir",),
                f"workdir is {shown(parsed.workdir)}: no directory"
                f" {' '.join(str(home / parsed.workdir).split())[:300]}",
                "a directory, relative to this file",
            )
        )
    words: tuple[str, ...] = ()
    try:
        words = _words(parsed, document, workdir)
    except ValueError as error:
        remedy = ""
        if str(error) == commands.LINES:
            remedy = (
                "for one long command end its lines with a backslash, or indent those after the"
                " first; for several commands set 'shell: true'"
            )
        elif "no shell reads it, so" in str(error):
            remedy = (
                "write out what it stands for, or set 'shell: true' to run the line through"
                " /bin/sh; if the program should get it literally, put it in single quotes"
            )
        mistakes.append(
            Mistake(("command",), str(error), "a program and its arguments", remedy=remedy)
        )
    mistakes += _unexpanded(parsed)
    mistakes += _redirected_output(parsed)
    from autotune_spaces.knobs.via import ViaKnob

    space, space_mistakes = _space(parsed.search_space, words or tuple(str(parsed.command).split()))
    mistakes += space_mistakes
    if space is not None:
        own = [k.name for k in space.knobs if isinstance(k, ViaKnob)]
        for name, close, expected in commands.unknown_placeholders(words, own):
            mistakes.append(
                Mistake(
                    ("command",),
                    f"unknown placeholder {{{name}}} in the command",
                    expected,
                    f"{{{close}}}" if close else "",
                )
            )
    mistakes += _placeholders_of_env(parsed)
    mistakes += _slots_in_one_directory(parsed) + _gpus_of_slots(parsed)
    mistakes += _slots_of_several_nodes(parsed, words)
    if "cost" in parsed.objective and parsed.price is None:
        mistakes.append(
            Mistake(
                ("objective",),
                "objective is 'cost', but there is no price",
                "price: what this machine costs per hour",
            )
        )
    if mistakes or space is None or workdir is None:
        return None, mistakes
    return _spec(parsed, document, file, words, workdir, space), []


def _placeholders_of_env(parsed: JobFile) -> list[Mistake]:
    """``{trial_dir}`` mistyped in ``env``. Templates of the program's own often stand there, too."""
    return [
        Mistake(
            ("env", variable),
            f"unknown placeholder {{{name}}} in 'env'",
            listing(f"{{{own}}}" for own in commands.OWN_PLACEHOLDERS),
            f"{{{close}}}",
        )
        for variable, text in parsed.env.items()
        for name in commands.placeholders([str(text)])
        if name not in commands.OWN_PLACEHOLDERS
        for close in get_close_matches(name, ["trial_dir"], 1, NEARLY_EQUAL)
    ]


def _slots_in_one_directory(parsed: JobFile) -> list[Mistake]:
    """Trials that run in one directory at the same time would restore each other's files."""
    ray = parsed.executor.ray
    if (
        ray is None
        or ray.workdir == "ship"
        or not parsed.side_effects.put_back
        or (ray.slots == 1 and (ray.nodes_per_slot or 1) == 1)
    ):
        return []
    return [
        Mistake(
            ("executor",),
            "several slots share the working directory, and each would undo what the others write",
            "side_effects: {put_back: false} and a job that writes to {trial_dir} only, or"
            " slots: 1",
            remedy="remove 'workdir: shared': every slot then has its own copy",
        )
    ]


def _gpus_of_slots(parsed: JobFile) -> list[Mistake]:
    """The job's own choice of GPUs would be every slot's, in place of the slot's share."""
    ray = parsed.executor.ray
    if ray is None or not ray.gpus_per_slot or VISIBLE not in parsed.env:
        return []
    return [
        Mistake(
            ("env", VISIBLE),
            f"{VISIBLE} together with gpus_per_slot: all slots of a node would use the same GPUs",
            "one of them",
            remedy=f"leave out {VISIBLE}: every slot sees only its own GPUs",
        )
    ]


def _slots_of_several_nodes(parsed: JobFile, words: Sequence[str]) -> list[Mistake]:
    """Require torchrun, without the options by which nodes find each other: autotune sets these."""
    ray = parsed.executor.ray
    if ray is None or (ray.nodes_per_slot or 1) == 1:
        return []
    if ray.gpus_per_slot or ray.cpus_per_slot:
        share = "gpus_per_slot" if ray.gpus_per_slot else "cpus_per_slot"
        return [
            Mistake(
                ("executor",),
                f"nodes_per_slot together with {share}",
                "whole nodes, or a share of one",
                remedy=f"leave out {share}",
            )
        ]
    if not commands.is_torchrun(words):
        found = f"nodes_per_slot is {ray.nodes_per_slot}, but the command does not start torchrun"
        return [
            Mistake(
                ("command",),
                found,
                "torchrun --nproc-per-node N program.py, which each node starts",
            )
        ]
    if own := commands.rendezvous_words(words):
        return [
            Mistake(
                ("command",),
                f"the command sets {own} itself",
                f"torchrun without it: nodes_per_slot: {ray.nodes_per_slot} sets it",
                remedy=(
                    "leave out --nnodes, --node-rank, --master-addr, --master-port, --rdzv-… and"
                    " --standalone"
                ),
            )
        ]
    return []


def _directory(home: Path, named: str) -> Path | None:
    """The directory called ``named``; None if there is none.

    None also for an unknown user (``~name``), a name that is too long, or a NUL in it.
    """
    try:
        path = (home / Path(named).expanduser()).resolve()
        return path if path.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _unexpanded(parsed: JobFile) -> list[Mistake]:
    known = {*os.environ, *parsed.env}
    found = {name: commands.shell_reference(str(v), known) for name, v in parsed.env.items()}
    return [
        Mistake(
            ("env", name),
            f"'{text}' in env.{name}: no shell reads it, so the program would get it literally",
            "the value that the program should see",
            remedy="write it out, or set the variable in the command, with 'shell: true'",
        )
        for name, text in found.items()
        if text
    ]


def _redirected_output(parsed: JobFile) -> list[Mistake]:
    """A shell line whose output goes to a file."""
    line = parsed.command if parsed.shell and isinstance(parsed.command, str) else ""
    return [
        Mistake(
            ("command",),
            f"the command sends its output to {file}: every trial would overwrite that file, and"
            " autotune would not see the output",
            "a command that prints its output",
            remedy=(
                "leave out the redirection (each session's directory has the output), or write to"
                " {trial_dir}"
            ),
        )
        for file in [commands.redirected_output(line)]
        if file
    ]


def _words(parsed: JobFile, document: Document, workdir: Path | None) -> tuple[str, ...]:
    if parsed.shell:
        if not isinstance(parsed.command, str):
            raise ValueError(
                "'shell: true' with a list as the command; a shell reads one line of text"
            )
        return ("/bin/sh", "-c", parsed.command)
    if isinstance(parsed.command, str):
        return commands.split(parsed.command, workdir)
    return tuple(read_text(document, ("command", at), w) for at, w in enumerate(parsed.command))


def _space(
    choice: str | dict[str, Any], words: tuple[str, ...]
) -> tuple[SearchSpace | None, list[Mistake]]:
    from autotune_spaces.space import SpaceError, load_space

    try:
        loaded = load_space(choice, command=words)
    except SpaceError as error:
        return None, [
            Mistake(("search_space", *e.path), e.found, e.expected, e.nearest) for e in error.each()
        ]
    return loaded, []


def _spec(
    parsed: JobFile,
    document: Document,
    file: Path,
    words: tuple[str, ...],
    workdir: Path,
    space: SearchSpace,
) -> JobSpec:
    source = file.resolve()
    return JobSpec(
        name=parsed.name or default_name(source, words),
        command=words,
        workdir=workdir,
        env={name: read_text(document, ("env", name), value) for name, value in parsed.env.items()},
        search_space=space,
        search=parsed.search,
        objective=parsed.objective[0],
        second_objective=parsed.objective[1] if len(parsed.objective) > 1 else "",
        price=parsed.price,
        planned_steps=parsed.planned_steps,
        constraints=Constraints(**parsed.constraints.model_dump()),
        convergence=_convergence(parsed.convergence),
        budget=Budget(**parsed.budget.model_dump()),
        executor=_executor(parsed.executor),
        tracking=Tracking(_beside(parsed.tracking.uri, source.parent), parsed.tracking.experiment),
        side_effects=SideEffects(parsed.side_effects.put_back, tuple(parsed.side_effects.keep)),
        traces=parsed.traces,
        hang_timeout_s=parsed.hang_timeout_s,
        startup_timeout_s=parsed.startup_timeout_s,
        source=source,
    )


def _convergence(parsed: ParsedConvergence) -> Convergence:
    metrics = {name: Metric(m.pattern, m.tolerance) for name, m in parsed.metrics.items()}
    return Convergence(parsed.tolerance, parsed.steps, metrics)


def _executor(parsed: ParsedExecutor) -> ExecutorSpec:
    settings: BaseModel | None = getattr(parsed, parsed.name, None)
    return ExecutorSpec(parsed.name, {} if settings is None else settings.model_dump())


def _beside(uri: str | None, home: Path) -> str | None:
    """Place a relative sqlite file beside job.yaml, wherever autotune is called from."""
    if uri and uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        path = os.path.expanduser(uri.removeprefix("sqlite:///"))
        return f"sqlite:///{os.path.normpath(home / path)}"
    return uri


def default_name(file: Path, words: tuple[str, ...]) -> str:
    """A name for a job without one: the file's if it says something, otherwise its folder's.

    The folder of a submitted job has another name where it runs: NAME_VARIABLE has the right one.
    """
    if given := os.environ.pop(NAME_VARIABLE, ""):  # it names one job, not what that starts
        return clean_name(given) or "job"
    word = file.stem if file.stem not in _DEFAULT_NAMES else file.parent.name
    return clean_name(word) or clean_name(Path(words[0]).name) or "job"


def clean_name(word: str) -> str:
    """``word`` with only the characters allowed in a job's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("-._")[:100]
