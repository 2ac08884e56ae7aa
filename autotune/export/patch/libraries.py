"""Names the library that owns the code a setting belongs in, and its own equivalent option."""

from __future__ import annotations

from pathlib import PurePath

from autotune.export.formats import lightning, training_arguments
from autotune.export.formats.accelerate import PRECISION
from autotune.export.formats.frameworks import Arguments
from autotune.export.tuned import TunedConfig


def owner_of(file: str) -> str:
    """Who owns ``file``: a library by name, another program, or code generated at run time."""
    if file.startswith("<"):
        return f"code generated while the job ran ({file})"
    parts = PurePath(file).parts
    return (
        f"the library {parts[0].removesuffix('.py')}"
        if parts and not file.startswith("/")
        else f"a file of another program, {file}"
    )


def option(tuned: TunedConfig, knob: str, file: str) -> str:
    """How to set the knob in the library that owns ``file``; "" if unknown."""
    library = PurePath(file).parts[0] if file else ""
    if library == "accelerate":
        if knob == "amp_dtype":
            return f'Accelerator(mixed_precision="{PRECISION[str(tuned.knobs[knob].value)]}")'
        return "DataLoaderConfiguration(non_blocking=True)" if knob == "non_blocking" else ""
    if library in training_arguments.LIBRARIES:
        groups = training_arguments.spell(tuned, knob)
        call = _call("TrainingArguments", groups.get("TUNED", {}))
        return "\n".join([call, *training_arguments.notes(tuned, groups)])
    if library in lightning.LIBRARIES:
        return _call("Trainer", lightning.spell(tuned, knob).get("TRAINER", {}))
    return ""


def _call(name: str, arguments: Arguments) -> str:
    words = ", ".join(f"{argument}={value!r}" for argument, value in arguments.items())
    return f"{name}({words})" if words else ""
