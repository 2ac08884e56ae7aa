"""Commands as shell lines: quoted, with variables for values that are not yet known."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

from autotune.export.launching import knobs_of, needs_launch
from autotune.export.tuned import TunedConfig, TunedKnob
from autotune.job.command import placeholders
from autotune.words import clean, yaml_words
from autotune_spaces.base import Knob, Scope, Start, Value
from autotune_spaces.shell_line import expanding, filled, shell_line
from autotune_spaces.space import command_line

PLACES = {"seed": "${SEED}", "trial_dir": "${TRIAL_DIR}"}


def quote(word: str, variables: Collection[str]) -> str:
    """Quote ``word`` for a shell; only ``${NAME}`` with NAME in ``variables`` is expanded."""
    parts = re.split(r"\$\{(\w+)\}", word)
    if len(parts) == 1:
        return shlex.quote(word)
    text = ""
    for index, part in enumerate(parts):
        if index % 2 == 0:
            text += shlex.quote(part) if part else ""
        else:
            text += f'"${{{part}}}"' if part in variables else shlex.quote(f"${{{part}}}")
    return text


def words_of(tuned: TunedConfig) -> list[str]:
    """The job's command with the knobs that are part of it; placeholders become variables."""
    values = {name: choice.value for name, choice in tuned.knobs.items()}
    words = command_line(tuned.command, knobs_of(tuned).values(), values)
    at = shell_line(words)
    if at is not None:
        for name in PLACES:
            words[at] = expanding(words[at], rf"(?<!\$)\{{{name}\}}", name.upper())
    return [filled(word, PLACES) for word in words]


def variables_of(tuned: TunedConfig) -> set[str]:
    """The variables in place of secrets and placeholders."""
    return {*tuned.env_from_launch, *_places(tuned)}


def _places(tuned: TunedConfig) -> set[str]:
    used = placeholders([*tuned.command, *tuned.env.values()])
    return {name.upper() for name in PLACES if name in used}


def line(words: Sequence[str], tuned: TunedConfig) -> str:
    """``words`` as a shell line; a shell line among them is expanded by its own shell only."""
    own = shell_line(words)
    return " ".join(
        shlex.quote(word) if at == own else quote(word, variables_of(tuned))
        for at, word in enumerate(words)
    )


def set_up(tuned: TunedConfig) -> list[str]:
    """Lines that prepare a shell to start the job: directory, variables, checks for secrets."""
    lines = [f"cd -- {shlex.quote(str(tuned.workdir))}"]
    places = _places(tuned)
    if "SEED" in places:
        lines.append('SEED="${SEED:-0}"')
    if "TRIAL_DIR" in places:
        lines.append('TRIAL_DIR="${TRIAL_DIR:-$PWD/out}"; mkdir -p -- "$TRIAL_DIR"')
    if places and shell_line(tuned.command) is not None:
        lines.append(f"export {' '.join(sorted(places))}")
    lines += ask_for_secrets(tuned)
    lines += [
        f"export {name}={quote(filled(value, PLACES), places)}" for name, value in tuned.env.items()
    ]
    return lines


def exports(knob: Knob, value: Value, tuned: TunedConfig) -> list[str]:
    """The lines that change the job's variables as a process knob does at launch."""
    if knob.scope is not Scope.PROCESS:
        return []
    env = {**(tuned.provenance.environment or {}), **tuned.env}
    kept = knob.prepare(Start((), env, ""), value).env
    own = knob.environment(value)
    return [
        *(f"unset {name}" for name in env if name not in kept),
        *(
            f"export {name}={shlex.quote(text)}"
            for name, text in kept.items()
            if name in own or env.get(name) != text
        ),
    ]


def ask_for_secrets(tuned: TunedConfig) -> list[str]:
    return [
        f': "${{{name}:?set it first; secrets are not stored in this file}}"'
        for name in tuned.env_from_launch
    ]


def in_words(name: str, knob: TunedKnob) -> str:
    """ "num_workers = 4 (was 0), 1.62x by itself"."""
    gain = f", {knob.gain.estimate:.2f}x by itself" if knob.gain else ""
    return clean(f"{name} = {shown(knob.value)} (was {shown(knob.was)}){gain}")


def knob_comments(tuned: TunedConfig) -> list[str]:
    """Every setting as text, one comment each."""
    return [
        text for name, choice in tuned.knobs.items() for text in comment(in_words(name, choice))
    ]


def shown(value: object) -> str:
    return "unset" if value is None else yaml_words(value)


def comment(text: str, indent: str = "# ") -> list[str]:
    """``text`` as comment lines; line breaks in it cannot break out of the comment."""
    return [(indent + part).rstrip() for part in text.splitlines() or [""]]


def _set_by_knobs(tuned: TunedConfig) -> set[str]:
    """The variables that the settings set or unset."""
    found = {"OMP_NUM_THREADS"} if "intra_op_threads" in tuned.knobs else set()
    for name, knob in knobs_of(tuned).items():
        value = tuned.knobs[name].value
        found |= {*knob.environment(value)}
        if not needs_launch(knob, value):
            lines = exports(knob, value, tuned)
            found |= {line.split()[1].partition("=")[0] for line in lines}
    return found


def head(tuned: TunedConfig, what: str) -> list[str]:
    """Title lines: the job, what this file is, where its settings come from."""
    p = tuned.provenance
    lines = comment(clean(f"{tuned.name}: {what}"))
    if p.speedup and tuned.knobs:
        lines += comment(f"{p.gain} with all of the settings below")
    verdict = f"loss {p.loss}" if tuned.knobs else "nothing to change: this is the job as it is"
    lines += comment(
        clean(
            f"{verdict}; measured on {p.machine.get('device_name', 'an unknown device')}, torch"
            f" {p.machine.get('torch_version', '?')}"
        )
    )
    known = {*tuned.env, *_set_by_knobs(tuned)}
    elsewhere = {n: v for n, v in (p.environment or {}).items() if n not in known}
    if elsewhere:
        set_there = " ".join(f"{n}={shlex.quote(v)}" for n, v in elsewhere.items())
        lines += comment(clean(f"tuned in a shell with {set_there}: set the same here"))
    if p.footprint.nodes > 1:
        lines += comment(f"tuned as one job across {p.footprint.nodes} nodes: start it on as many")
    return lines
