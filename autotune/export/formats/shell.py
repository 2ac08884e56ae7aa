"""Exports a self-contained shell script that runs the job with its tuned settings.

If every knob can be set by environment or command line, it is a plain script. Otherwise it embeds
tuned.yaml and passes it to ``autotune launch`` on descriptor 3, which leaves stdin to the job.
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
