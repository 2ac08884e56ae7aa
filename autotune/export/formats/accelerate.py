"""Exports the job as a script that runs it under accelerate launch."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.export.formats.base import Format
from autotune.export.formats.launchers import script, take_apart
from autotune.export.formats.resources import resources_of
from autotune.export.shell_words import comment, head, words_of
from autotune.export.tuned import TunedConfig
from autotune_spaces.base import Value

PRECISION = {"bfloat16": "bf16", "float16": "fp16", "off": "no"}

DYNAMO: dict[Value, list[str]] = {  # instead of a mode; static is accelerate's default
    "regional": ["--dynamo_use_regional_compilation"],
    "dynamic": ["--dynamo_use_dynamic"],
    "static": [],
}


def flags(name: str, value: Value) -> list[str]:
    """accelerate's options for a knob value; [] if it has none."""
    if name == "amp_dtype" and value in PRECISION:
        return [f"--mixed_precision={PRECISION[str(value)]}"]
    if name == "compile_mode":
        return (
            ["--dynamo_backend=no"]
            if value == "off"
            else ["--dynamo_backend=inductor", *DYNAMO.get(value, [f"--dynamo_mode={value}"])]
        )
    if name == "intra_op_threads":
        return [f"--num_cpu_threads_per_process={value}"]
    return []


def write(tuned: TunedConfig) -> str:
    parts = take_apart(words_of(tuned), "accelerate")
    title = head(tuned, "under accelerate, with the tuned settings that accelerate can pass on")
    new = [flag for name, choice in tuned.knobs.items() for flag in flags(name, choice.value)]
    native = {name for name, choice in tuned.knobs.items() if flags(name, choice.value)}
    if parts.launcher == "accelerate":
        options = _without(parts.options, [flag.partition("=")[0] for flag in new])
    else:
        processes = 1 if parts.launcher == "python" else resources_of(tuned).processes
        options = [
            f"--num_processes={processes}",
            *(["--cpu"] if tuned.provenance.job_device == "cpu" else []),
        ]
        if parts.launcher == "torchrun" or parts.options:
            title += comment(
                f"Left out, because accelerate starts the program itself: {parts.launcher}"
                f" {' '.join(parts.options)}"
            )
    if native & {"amp_dtype", "compile_mode"}:
        title += comment(
            "--mixed_precision and --dynamo_… reach a program through its accelerate.Accelerator();"
            " a program without one ignores them."
        )
    return script(
        tuned,
        title,
        ["accelerate", "launch", *options, *new, *parts.program],
        native,
        {},
        "accelerate",
    )


def _without(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """``options`` without ``names``, whether written --a=b or --a b, with dashes or underscores."""
    kept: list[str] = []
    skip = False
    for index, option in enumerate(options):
        if skip:
            skip = False
            continue
        name, equals, _ = option.partition("=")
        if option.startswith("--") and name.replace("-", "_")[2:] in [n[2:] for n in names]:
            skip = (
                not equals and index + 1 < len(options) and not options[index + 1].startswith("-")
            )
            continue
        kept.append(option)
    return kept


ACCELERATE = Format("accelerate", "the job under accelerate launch", write, executable=True)
