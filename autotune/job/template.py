"""What `autotune init` writes: the keys most jobs need, each with its purpose and default."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.job.command import VARIABLE
from autotune.job.load import clean_name
from autotune.job.schema import Budget, Constraints, Convergence, JobFile, SideEffects, Tracking
from autotune.job.yaml_text import yaml_scalar

# names that do not tell jobs apart
_PLAIN_SCRIPTS = ("train", "main", "run", "trainer", "training", "__main__")


def suggest_name(command: Sequence[str], folder: Path) -> str:
    """The script's name if it says something ("train_resnet.py"), otherwise the folder's."""
    for word in command[1:]:
        if word.endswith(".py"):
            stem = Path(word).stem
            if stem not in _PLAIN_SCRIPTS and clean_name(stem):
                return clean_name(stem)
            break
    return clean_name(folder.resolve().name) or "job"


def take_variables(command: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(variables, command) from words as typed in a shell: ``EPOCHS=3 python train.py``."""
    words, variables = list(command), {}
    while words and VARIABLE.match(words[0]):
        variable, _, value = words.pop(0).partition("=")
        variables[variable] = value
    return variables, words


def job_yaml(
    command: Sequence[str], name: str, workdir: str = ".", env: Mapping[str, str] | None = None
) -> str:
    """The text of a commented job.yaml for ``command``, run in ``workdir`` (relative to the file)."""
    fields = JobFile.model_fields
    budget, limits, loss = Budget(), Constraints(), Convergence()
    return f"""\
# A training job for autotune.     check: autotune check FILE     tune: autotune run FILE
# In an editor: autotune schema > job.schema.json, then make this the first line:
#   yaml-language-server: $schema=job.schema.json

# {fields["name"].description}
name: {yaml_scalar(name)}

# {fields["command"].description}
command: {yaml_scalar(shlex.join(command))}

# {fields["workdir"].description}
{"# workdir: ." if workdir == "." else f"workdir: {yaml_scalar(workdir)}"}

# {fields["env"].description}
{_variables(env or {})}

# {fields["search_space"].description}
# "autotune knobs" lists the knobs.
search_space: auto

# {fields["search"].description}
# search: model

# {fields["objective"].description}
# objective: throughput

# {fields["price"].description}
# price: 2.50

# {fields["planned_steps"].description}
# planned_steps: {fields["planned_steps"].default}

# {Constraints.__doc__} Host memory in GiB, GPU memory as a share.
# constraints: {{device_memory_fraction: {limits.device_memory_fraction:g}, host_memory_gib: 16}}

# {Convergence.__doc__}
# convergence: {{tolerance: {loss.tolerance:.0%}, steps: {loss.steps}, metrics: {{val_acc: 'val_acc=([0-9.]+)'}}}}

# {Budget.__doc__}
budget: {{minutes: {budget.minutes:g}}}

# Where the run is recorded: {Tracking.model_fields["uri"].description}
# tracking: {{uri: auto}}

# {SideEffects.__doc__} See docs/side-effects.md.
# side_effects: {{put_back: true, keep: [data]}}

# {fields["traces"].description}
# traces: finalists

# {fields["hang_timeout_s"].description}
# hang_timeout_s: 300

# {fields["startup_timeout_s"].description}
# startup_timeout_s: {fields["startup_timeout_s"].default:g}
"""


def _variables(env: Mapping[str, str]) -> str:
    if not env:
        return "# env:\n#   OMP_NUM_THREADS: 4"
    return "\n".join(["env:", *(f"  {name}: {yaml_scalar(value)}" for name, value in env.items())])
