"""The registry: a new format adds a file here and a line below."""

from __future__ import annotations

import importlib

from autotune.export.formats.base import Format

_NAMES = (  # of formats: each in the module of its name, as a constant of its name
    "yaml",
    "shell",
    "torchrun",
    "accelerate",
    "sbatch",
    "k8s",
    "python",
    "diff",
)
FORMATS: dict[str, Format] = {
    name: getattr(importlib.import_module(f"{__name__}.{name}"), name.upper()) for name in _NAMES
}

__all__ = ["FORMATS", "Format"]
