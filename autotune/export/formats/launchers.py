"""Shared by torchrun and accelerate: puts another launcher in front of the same program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import InputError
from autotune.export.launching import knobs_of, needs_launch
from autotune.export.shell_words import comment, exports, in_words, line, set_up, words_of
from autotune.export.tuned import TunedConfig
from autotune_spaces.knobs.via import ViaKnob


@dataclass(frozen=True)
class Parts:
    """A command split into launcher, launcher options and program."""

    launcher: str  # "python", "torchrun", "accelerate"
    options: tuple[str, ...]  # of the launcher
    program: tuple[str, ...]  # script or "-m", module; then its arguments


# To find the script, we must know which options take the next word as their value.
# Options of python that do:
_PYTHON_VALUES = {"-W", "-X", "--check-hash-based-pycs"}
# Options of torchrun and accelerate launch that do not (both also accept dashes for underscores):
_FLAGS_ALONE = """
    --standalone --no_python --run_path --use_env --virtual_local_rank --cpu --multi_gpu --tpu
    --use_deepspeed --use_fsdp --debug --quiet -q --same_network --dynamo_use_fullgraph
    --dynamo_use_dynamic --dynamo_use_regional_compilation --use_mps_device --mps --use_megatron_lm
    --use_xpu --ipex --enable_cpu_affinity --downcast_bf16 --fp8_use_autocast_during_eval
    --tpu_cluster --no_tpu_cluster --tpu_use_sudo --use_parallelism_config --help -h
""".split()


def parts_for(tuned: TunedConfig, launcher: str) -> Parts:
    """The job's command, to be started by ``launcher``.

    Raises:
        InputError: as :func:`take_apart`, or it is started by another launcher.
    """
    parts = take_apart(words_of(tuned))
    if parts.launcher not in ("python", launcher):
        raise InputError(
            f"the job was tuned under {parts.launcher}",
            where=f"--format {launcher}",
            expected=f"a job under {launcher}, or under python alone",
            remedy="use --format shell, which runs any command",
        )
    return parts


def take_apart(words: Sequence[str]) -> Parts:
    """Split the command into launcher and program.

    Raises:
        InputError: it is not python, torchrun or accelerate launch, or runs no script or module.
    """
    name = Path(words[0]).name
    if re.fullmatch(r"python[\d.]*", name):
        options, rest = _split(_module_apart(words[1:]), _PYTHON_VALUES.__contains__)
        if rest[:2] == ("-m", "torch.distributed.run"):
            return Parts("torchrun", *_split(rest[2:], _launcher_takes_value))
        if rest[:2] == ("-m", "accelerate.commands.launch"):
            return Parts("accelerate", *_split(rest[2:], _launcher_takes_value))
        parts = Parts("python", options, rest)
        if rest[:2] == ("-m", "torch.distributed.launch"):  # gives its program --local-rank
            parts = Parts("torch.distributed.launch", (), rest[2:])
    elif name == "torchrun":
        parts = Parts("torchrun", *_split(words[1:], _launcher_takes_value))
    elif name == "accelerate" and list(words[1:2]) == ["launch"]:
        parts = Parts("accelerate", *_split(words[2:], _launcher_takes_value))
    else:
        raise InputError(
            f"the command starts '{words[0]}', which is no launcher of Python programs",
            where="command",
            expected="python SCRIPT, torchrun … or accelerate launch …",
            remedy="use --format shell, which runs any command",
        )
    if not parts.program or parts.program[0] in ("-c", "-"):
        raise InputError(
            "the command runs no script or module",
            where="command",
            expected="python SCRIPT",
            remedy="use --format shell",
        )
    return parts


def threads_by_variable(tuned: TunedConfig) -> bool:
    """Whether a launcher can set intra_op_threads: the job does not call set_num_threads itself."""
    calls = {site.name for site in tuned.provenance.sites.settings}
    return "intra_op_threads" in tuned.knobs and "set_num_threads" not in calls


def own_threads(tuned: TunedConfig) -> int | None:
    """Compute threads of the job's process; None: unknown, or a variable sets them."""
    variables = {
        variable
        for name, knob in knobs_of(tuned).items()
        for variable in knob.environment(tuned.knobs[name].value)
    }
    if threads_by_variable(tuned) or "OMP_NUM_THREADS" in {*tuned.env, *variables}:
        return None
    return tuned.provenance.footprint.threads or None


def launched_by(first: str, launcher: Sequence[str], module: str) -> list[str]:
    """The first words of a command that starts ``launcher`` (its ``module``) from the environment
    of ``first``, the first word of the job's command."""
    if "/" not in first:
        return list(launcher)
    if Path(first).name.startswith("python"):
        return [first, "-m", module]
    return [str(Path(first).with_name(launcher[0])), *launcher[1:]]


def _module_apart(words: Sequence[str]) -> list[str]:
    """Python's words with ``-um MODULE`` and ``-mMODULE`` as ``-u -m MODULE`` and ``-m MODULE``."""
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-", "-c"):
        if match := re.fullmatch(r"-([a-ln-zA-VYZ]*)m(.*)", words[index]):
            before = [f"-{match[1]}"] if match[1] else []
            return [*words[:index], *before, "-m", *filter(None, [match[2]]), *words[index + 1 :]]
        index += 2 if words[index] in _PYTHON_VALUES else 1
    return list(words)


def _split(
    words: Sequence[str], takes_value: Callable[[str], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(options, script or -m module with its arguments).

    ``takes_value``: whether an option takes the next word as its value.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word in ("-m", "--module", "-c", "-") or not word.startswith("-"):
            break
        index += 2 if takes_value(word) else 1
    return tuple(words[:index]), tuple(words[index:])


def _launcher_takes_value(option: str) -> bool:
    """Whether this option of torchrun or accelerate launch takes the next word as its value."""
    return "=" not in option and _underscored(option) not in _FLAGS_ALONE


def _underscored(option: str) -> str:
    dashes = len(option) - len(option.lstrip("-"))
    return option[:dashes] + option[dashes:].replace("-", "_")


def without(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """``options`` without ``names``, whether written --a=b or --a b, with dashes or underscores."""
    kept: list[str] = []
    skip = False
    for index, option in enumerate(options):
        if skip:
            skip = False
            continue
        name, equals, _ = option.partition("=")
        if _underscored(name) in names:
            skip = (
                not equals and index + 1 < len(options) and not options[index + 1].startswith("-")
            )
            continue
        kept.append(option)
    return kept


def script(
    tuned: TunedConfig,
    title: Sequence[str],
    command: Sequence[str],
    native: Collection[str],
    own_exports: dict[str, str],
    who: str,
) -> str:
    """A shell script: title, comments on what ``who`` cannot set, set-up, command.

    Args:
        native: knobs that ``command`` or ``own_exports`` already set.
    """
    knobs = knobs_of(tuned)
    lines = ["#!/bin/sh", *title]
    settings = [f"export {name}={shlex.quote(value)}" for name, value in own_exports.items()]
    said, unsaid = [], []
    for name, choice in tuned.knobs.items():
        knob = knobs[name]
        changes: list[str] = []
        if name not in native and not needs_launch(knob, choice.value):
            changes = exports(knob, choice.value, tuned)
        settings += changes
        if changes or name in native or isinstance(knob, ViaKnob):
            said.append(in_words(name, choice))
        else:
            unsaid.append((in_words(name, choice), knob.snippet(choice.value)))
    lines += [text for words in said for text in comment(f"  set below: {words}")]
    if unsaid:
        lines += [
            "#",
            *comment(
                f"{who} has no option for the following. Write them into your program, or keep"
                " using"
            ),
        ]
        lines += comment("`autotune launch` (--format shell), which sets them without changing it.")
    for words, snippet in unsaid:
        lines += [*comment(f"  {words}"), *comment(snippet or "no code for it", "#       ")]
    lines += ["set -eu", *set_up(tuned), *settings]
    return "\n".join([*lines, f'exec {line(command, tuned)} "$@"']) + "\n"
