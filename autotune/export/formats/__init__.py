"""The registry of export formats: a new format adds a file here and its name below."""

from __future__ import annotations

import importlib

from autotune.export.formats.base import Format

# Format names: each is a constant of that name in the module of that name
_NAMES = """
    yaml shell torchrun accelerate sbatch k8s kubeflow skypilot python diff training-arguments
    lightning
""".split()
FORMATS: dict[str, Format] = {
    name: getattr(importlib.import_module(f"{__name__}.{word}"), word.upper())
    for name, word in ((name, name.replace("-", "_")) for name in _NAMES)
}


def format_named(name: str) -> Format:
    """Return the format called ``name``.

    Raises:
        InputError: there is no such format.
    """
    from autotune.errors import InputError
    from autotune.job.mistakes import did_you_mean, listing

    if name not in FORMATS:
        remedy = did_you_mean(name, FORMATS)
        raise InputError(
            f"no format '{name}'", where="--format", expected=listing(FORMATS), remedy=remedy
        )
    return FORMATS[name]


__all__ = ["FORMATS", "Format", "format_named"]
