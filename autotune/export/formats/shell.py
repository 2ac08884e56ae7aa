"""A script that runs the job with its tuned settings and needs no other file.

Where every knob can be said in the environment or on the command line, it is a plain script. Else it carries tuned.yaml within
itself and hands it to ``autotune launch`` on descriptor 3, so that stdin stays the job's.
"""

from __future__ import annotations

import shlex
import sys

from autotune.export.formats.base import Format
from autotune.export.launching import knobs_of, needs_launch
from autotune.export.shell_words import (
    ask_for_secrets,
    comment,
    exports,
    head,
    in_words,
    line,
    set_up,
    words_of,
)
from autotune.export.tuned import TunedConfig, to_yaml


def write(tuned: TunedConfig) -> str:
    knobs = knobs_of(tuned)
    lines = ["#!/bin/sh", *head(tuned, "run with tuned settings")]
    lines += [text for name, choice in tuned.knobs.items() for text in comment(in_words(name, choice))]
    lines += ["set -eu"]
    if any(needs_launch(knob) for knob in knobs.values()):
        return "\n".join([*lines, *_through_launch(tuned)]) + "\n"
    lines += set_up(tuned)
    for name, knob in knobs.items():
        lines += exports(knob, tuned.knobs[name].value, tuned)
    return "\n".join([*lines, f'exec {line(words_of(tuned), tuned)} "$@"']) + "\n"


def _through_launch(tuned: TunedConfig) -> list[str]:
    text = to_yaml(tuned)
    end = "TUNED_YAML"
    while end in text:
        end += "_"
    return [
        *ask_for_secrets(tuned),
        f"AUTOTUNE_PYTHON=${{AUTOTUNE_PYTHON:-{shlex.quote(sys.executable)}}}  # a Python that has autotune-torch",
        # -P: the directory this is called from may hold something called autotune
        f'exec "$AUTOTUNE_PYTHON" -P -m autotune launch /dev/fd/3 -- "$@" 3<<\'{end}\'',
        text.rstrip("\n"),
        end,
    ]


SHELL = Format("shell", "a script that runs the job with its tuned settings", write, executable=True)
