"""The registry: a new format adds a file here and a line below."""

from __future__ import annotations

from autotune.export.formats.accelerate import ACCELERATE
from autotune.export.formats.base import Format
from autotune.export.formats.diff import DIFF
from autotune.export.formats.frameworks import LIGHTNING, TRAINING_ARGUMENTS
from autotune.export.formats.k8s import K8S
from autotune.export.formats.python import PYTHON
from autotune.export.formats.sbatch import SBATCH
from autotune.export.formats.shell import SHELL
from autotune.export.formats.torchrun import TORCHRUN
from autotune.export.formats.yaml import YAML

FORMATS: dict[str, Format] = {f.name: f for f in (YAML, SHELL, TORCHRUN, ACCELERATE, SBATCH, K8S, PYTHON, DIFF, TRAINING_ARGUMENTS, LIGHTNING)}


def format_named(name: str) -> Format:
    """Raises:
    InputError: there is no such format.
    """
    from autotune.errors import InputError
    from autotune.job.mistakes import listing, nearest

    if name not in FORMATS:
        close = nearest(name, FORMATS)
        remedy = f"did you mean '{close}'?" if close else ""
        raise InputError(f"no format '{name}'", where="--format", expected=listing(FORMATS), remedy=remedy)
    return FORMATS[name]


__all__ = ["FORMATS", "Format", "format_named"]
