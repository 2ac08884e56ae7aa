"""Builds the self-contained scripts of the shell, sbatch and cluster formats.

every knob is a variable or a word     set-up, exports, the command
otherwise                              tuned.yaml as a here-document, passed to ``autotune launch``
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence

from autotune.export.launching import knobs_of, uses_launch, uses_out
from autotune.export.shell_words import ask_for_secrets, exports, line, set_up, words_of
from autotune.export.tuned import TunedConfig, embedded_yaml
from autotune_spaces.shell_line import shell_line

# Words after the line of `sh -c LINE` are not appended to it but lost.
NO_WORDS = """[ "$#" -eq 0 ] || { echo "$0: the job is a shell command line; arguments cannot be appended to it: edit it in this file" >&2; exit 2; }"""
Launching = Callable[[str, str], Sequence[str]]


def whole_script(tuned: TunedConfig, head: Sequence[str], start: str, launching: Launching) -> str:
    """The script's text.

    Args:
        head: its first lines, up to the set-up of the job.
        start: the word before the job's command if that can be run directly.
        launching: (here-document's text, its end marker) -> the lines that pass it to
            ``autotune launch``.
    """
    knobs = knobs_of(tuned)
    if uses_launch(tuned):
        body = [*ask_for_secrets(tuned), *launching(*_here_document(tuned))]
    else:
        settings = [
            text
            for name, knob in knobs.items()
            for text in exports(knob, tuned.knobs[name].value, tuned)
        ]
        words = words_of(tuned)
        more = ['"$@"'] if shell_line(words) is None else []
        body = [
            *([] if more else [NO_WORDS]),
            *set_up(tuned),
            *settings,
            " ".join([start, line(words, tuned), *more]),
        ]
    return "\n".join([*head, *body]) + "\n"


def through_launch(tuned: TunedConfig, python: str = sys.executable) -> Launching:
    """Lines that pass tuned.yaml to ``autotune launch`` on descriptor 3, leaving stdin to the job.

    ``python``: the default Python with autotune installed.
    """

    def lines(text: str, end: str) -> list[str]:
        return [
            a_python(python=python),
            # -P: the current directory may contain a module called autotune
            (
                'exec "$AUTOTUNE_PYTHON" -P -m autotune launch /dev/fd/3'
                f"{placeholder_options(tuned)} -- \"$@\" 3<<'{end}'"
            ),
            text,
            end,
        ]

    return lines


def placeholder_options(tuned: TunedConfig) -> str:
    """Options of ``autotune launch`` that set ``{seed}`` and ``{trial_dir}``.

    As in a plain script, the values come from the variables SEED and TRIAL_DIR.
    """
    everything = " ".join([*tuned.command, *tuned.env.values()])
    return (' --seed "${SEED:-0}"' if "{seed}" in everything else "") + (
        ' ${TRIAL_DIR:+--out "$TRIAL_DIR"}' if uses_out(tuned) else ""
    )


def rendezvous(nodes: int, number: str, first: str) -> list[str]:
    """Environment variables, instead of options, that let torchrun's nodes find each other.

    Args:
        number: shell expression for an id unique to this start of the job.
        first: shell expression for the first node's name.
    """
    return [
        "# torchrun reads its options from these, so that its nodes find each other.",
        f'export PET_NNODES={nodes} PET_RDZV_BACKEND=c10d PET_RDZV_ID="{number}"',
        f'PET_RDZV_ENDPOINT="{first}:29500"',
        "export PET_RDZV_ENDPOINT",
    ]


def a_python(where: str = "", python: str = sys.executable) -> str:
    """Assigns the Python that runs ``autotune launch``; a value set by the caller wins."""
    return (
        f"AUTOTUNE_PYTHON=${{AUTOTUNE_PYTHON:-{shlex.quote(python)}}}  # a Python that has"
        f" autotune-torch{where}"
    )


def _here_document(tuned: TunedConfig) -> tuple[str, str]:
    text, end = embedded_yaml(tuned), "TUNED_YAML"
    while end in text:
        end += "_"
    return text.rstrip("\n"), end
