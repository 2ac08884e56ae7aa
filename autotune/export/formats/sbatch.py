"""A batch script for Slurm that runs the job with its tuned settings and needs no other file.

As the shell format: settings that need the agent travel as tuned.yaml within the script, in an environment variable, because srun
passes no open files on to other nodes.
"""

from __future__ import annotations

import shlex
import sys

from autotune.export.formats.base import Format
from autotune.export.formats.resources import Resources, names_rendezvous, resources_of, slug
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
    knobs, wanted = knobs_of(tuned), resources_of(tuned)
    lines = ["#!/bin/bash", *_directives(tuned, wanted), "#", *head(tuned, "run with tuned settings, under Slurm")]
    lines += [text for name, choice in tuned.knobs.items() for text in comment(in_words(name, choice))]
    lines += ["#", *comment("Add what your cluster asks for: --time, --partition, --account.")]
    if wanted.nodes > 1 and not names_rendezvous(tuned):
        lines += comment(f"The command starts on {wanted.nodes} nodes and names no place where they meet: add --rdzv-endpoint to it.")
    # Since 22.05 srun does not take the number of cores from sbatch by itself.
    lines += ["set -euo pipefail", 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"']
    if any(needs_launch(knob) for knob in knobs.values()):
        return "\n".join([*lines, *_through_launch(tuned)]) + "\n"
    lines += set_up(tuned)
    for name, knob in knobs.items():
        lines += exports(knob, tuned.knobs[name].value, tuned)
    return "\n".join([*lines, f'srun {line(words_of(tuned), tuned)} "$@"']) + "\n"


def _directives(tuned: TunedConfig, wanted: Resources) -> list[str]:
    """One task a node: what starts several processes (torchrun, accelerate, the program itself) starts them there."""
    options = [f"--job-name={slug(tuned.name)}", f"--nodes={wanted.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={wanted.cpus}"]
    options += [f"--gpus-per-node={wanted.gpus}"] if wanted.gpus else []
    return [f"#SBATCH {option}" for option in [*options, "--output=%x-%j.out"]]


def _through_launch(tuned: TunedConfig) -> list[str]:
    text = to_yaml(tuned)
    end = "TUNED_YAML"
    while end in text:
        end += "_"
    return [
        *ask_for_secrets(tuned),
        f"export AUTOTUNE_PYTHON=${{AUTOTUNE_PYTHON:-{shlex.quote(sys.executable)}}}  # a Python that has autotune-torch, on every node",
        f"AUTOTUNE_TUNED=$(cat <<'{end}'",
        text.rstrip("\n"),
        end,
        ")",
        "export AUTOTUNE_TUNED",
        "# shellcheck disable=SC2016  # for the shell on the node to expand",
        """srun bash -c 'exec "$AUTOTUNE_PYTHON" -P -m autotune launch /dev/fd/3 -- "$@" 3<<<"$AUTOTUNE_TUNED"' autotune "$@\"""",
    ]


SBATCH = Format("sbatch", "a Slurm batch script that runs the job with its tuned settings", write, executable=True)
