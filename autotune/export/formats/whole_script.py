"""What shell and sbatch have in common: a script that needs no other file.

every knob is a variable or a word     set-up, exports, the command
else                                   tuned.yaml as a here-document, handed to ``autotune launch``
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence

from autotune.export.launching import knobs_of, uses_launch, uses_out
from autotune.export.shell_words import ask_for_secrets, exports, line, set_up, words_of
from autotune.export.tuned import TunedConfig, embedded_yaml
from autotune_spaces.knobs.via import is_shell

# What comes behind the line of `sh -c LINE` is not added to it, but lost.
NO_WORDS = """[ "$#" -eq 0 ] || { echo "$0: the job is a line for a shell, to which no words can be added: change it in this file" >&2; exit 2; }"""
Launching = Callable[[str, str], Sequence[str]]


def whole_script(tuned: TunedConfig, head: Sequence[str], start: str, launching: Launching) -> str:
    """The script's text.

    Args:
        head: its first lines, up to where the job is set up.
        start: the word before the job's command, where that can be run as it is.
        launching: (here-document's text, the word that ends it) -> the lines that hand it to
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
        more = [] if is_shell(words) else ['"$@"']
        body = [
            *([] if more else [NO_WORDS]),
            *set_up(tuned),
            *settings,
            " ".join([start, line(words, tuned), *more]),
        ]
    return "\n".join([*head, *body]) + "\n"


def through_launch(tuned: TunedConfig, python: str = sys.executable) -> Launching:
    """How a shell hands tuned.yaml to ``autotune launch``: on descriptor 3, so that stdin stays the
    job's. ``python``: the one that has autotune, where the caller names none."""

    def lines(text: str, end: str) -> list[str]:
        return [
            a_python(python=python),
            # -P: the directory this is called from may hold something called autotune
            (
                'exec "$AUTOTUNE_PYTHON" -P -m autotune launch /dev/fd/3'
                f"{places(tuned)} -- \"$@\" 3<<'{end}'"
            ),
            text,
            end,
        ]

    return lines


def places(tuned: TunedConfig) -> str:
    """Options of ``autotune launch`` for what ``{seed}`` and ``{trial_dir}`` stand for: as in a
    script without it, the variables SEED and TRIAL_DIR say so.
    """
    everything = " ".join([*tuned.command, *tuned.env.values()])
    return (' --seed "${SEED:-0}"' if "{seed}" in everything else "") + (
        ' ${TRIAL_DIR:+--out "$TRIAL_DIR"}' if uses_out(tuned) else ""
    )


def meeting(nodes: int, number: str, first: str) -> list[str]:
    """What torchrun is told in the place of words, so that its nodes find each other.

    Args:
        number: of this start of the job, for a shell to fill in.
        first: the first node's name, for a shell to fill in.
    """
    return [
        "# torchrun reads its options from these, so that its nodes find each other.",
        f'export PET_NNODES={nodes} PET_RDZV_BACKEND=c10d PET_RDZV_ID="{number}"',
        f'PET_RDZV_ENDPOINT="{first}:29500"',
        "export PET_RDZV_ENDPOINT",
    ]


def a_python(where: str = "", python: str = sys.executable) -> str:
    """The assignment that says which Python runs ``autotune launch``; the caller's own choice comes
    first.
    """
    return (
        f"AUTOTUNE_PYTHON=${{AUTOTUNE_PYTHON:-{shlex.quote(python)}}}  # a Python that has"
        f" autotune-torch{where}"
    )


def _here_document(tuned: TunedConfig) -> tuple[str, str]:
    text, end = embedded_yaml(tuned), "TUNED_YAML"
    while end in text:
        end += "_"
    return text.rstrip("\n"), end
