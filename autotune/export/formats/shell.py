"""A script that runs the job with its tuned settings and needs no other file.

Where every knob can be said in the environment or on the command line, it is a plain script. Else
it carries tuned.yaml within itself and hands it to ``autotune launch`` on descriptor 3, so that
stdin stays the job's.
"""

from __future__ import annotations

from autotune.export.formats.base import Format
from autotune.export.formats.whole_script import through_launch, whole_script
from autotune.export.shell_words import head, knob_comments
from autotune.export.tuned import TunedConfig


def write(tuned: TunedConfig) -> str:
    lines = ["#!/bin/sh", *head(tuned, "run with tuned settings"), *knob_comments(tuned), "set -eu"]
    return whole_script(tuned, lines, "exec", through_launch(tuned))


SHELL = Format(
    "shell", "a script that runs the job with its tuned settings", write, executable=True
)
