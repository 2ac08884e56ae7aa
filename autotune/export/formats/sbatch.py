"""Exports a self-contained Slurm batch script that runs the job with its tuned settings.

As in the shell format, settings that need the agent are embedded as tuned.yaml. Here the text is
passed in an environment variable, because srun does not pass open files to other nodes.
"""

from __future__ import annotations

from functools import partial

from autotune.export.formats.base import Format
from autotune.export.formats.resources import Resources, names_rendezvous, resources_of, slug
from autotune.export.formats.whole_script import (
    a_python,
    placeholder_options,
    rendezvous,
    whole_script,
)
from autotune.export.shell_words import comment, head, knob_comments
from autotune.export.tuned import TunedConfig

FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'  # first node


def write(tuned: TunedConfig) -> str:
    wanted = resources_of(tuned)
    lines = [
        "#!/bin/bash",
        *_directives(tuned, wanted),
        "#",
        *head(tuned, "run with tuned settings, under Slurm"),
        *knob_comments(tuned),
    ]
    lines += ["#", *comment("Add what your cluster requires: --time, --partition, --account.")]
    spread = tuned.provenance.footprint.nodes > 1 and not names_rendezvous(tuned)
    if wanted.nodes > 1 and not names_rendezvous(tuned) and not spread:
        lines += comment(
            f"The command uses {wanted.nodes} nodes but names no rendezvous: add"
            " --rdzv-endpoint to it."
        )
    # Since Slurm 22.05, srun no longer inherits --cpus-per-task from sbatch.
    lines += ["set -euo pipefail", 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"']
    lines += rendezvous(wanted.nodes, "$SLURM_JOB_ID", FIRST) if spread else []
    return whole_script(tuned, lines, "srun", partial(_through_launch, placeholder_options(tuned)))


def _directives(tuned: TunedConfig, wanted: Resources) -> list[str]:
    """One task per node: torchrun, accelerate or the program itself starts the processes there."""
    options = [
        f"--job-name={slug(tuned.name)}",
        f"--nodes={wanted.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={wanted.cpus}",
    ]
    if tuned.provenance.footprint.host_memory_gib:  # a share of another machine's may be too much
        options += [f"--mem={wanted.memory_gib}G"]
    options += [f"--gpus-per-node={wanted.gpus}"] if wanted.gpus else []
    return [f"#SBATCH {option}" for option in [*options, "--output=%x-%j.out"]]


def _through_launch(options: str, text: str, end: str) -> list[str]:
    return [
        f"export {a_python(', on every node')}",
        f"AUTOTUNE_TUNED=$(cat <<'{end}'",
        text,
        end,
        ")",
        "export AUTOTUNE_TUNED",
        "# shellcheck disable=SC2016  # for the shell on the node to expand",
        (
            'srun bash -c \'exec "$AUTOTUNE_PYTHON" -P -m autotune launch /dev/fd/3'
            f'{options} -- "$@" 3<<<"$AUTOTUNE_TUNED"\' autotune "$@"'
        ),
    ]


SBATCH = Format(
    "sbatch",
    "a Slurm batch script that runs the job with its tuned settings",
    write,
    executable=True,
)
