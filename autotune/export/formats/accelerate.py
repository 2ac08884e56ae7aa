"""Exports the job as a script that runs it under accelerate launch."""

from __future__ import annotations

from autotune.export.formats.base import Format
from autotune.export.formats.launchers import (
    launched_by,
    own_threads,
    parts_for,
    script,
    threads_by_variable,
    without,
)
from autotune.export.shell_words import comment, head, words_of
from autotune.export.tuned import TunedConfig
from autotune_spaces.base import Value

PRECISION = {"bfloat16": "bf16", "float16": "fp16", "off": "no"}

DYNAMO: dict[Value, list[str]] = {  # instead of a mode; static is accelerate's default
    "regional": ["--dynamo_use_regional_compilation"],
    "dynamic": ["--dynamo_use_dynamic"],
    "static": [],
}
MODES = ("default", "reduce-overhead", "max-autotune")  # that --dynamo_mode takes


def flags(name: str, value: Value) -> list[str]:
    """accelerate's options for a knob value; [] if it has none."""
    if name == "amp_dtype" and value in PRECISION:
        return [f"--mixed_precision={PRECISION[str(value)]}"]
    if name == "compile_mode" and value == "off":
        return ["--dynamo_backend=no"]
    if name == "compile_mode" and (value in DYNAMO or value in MODES):
        return ["--dynamo_backend=inductor", *DYNAMO.get(value, [f"--dynamo_mode={value}"])]
    if name == "intra_op_threads":
        return [f"--num_cpu_threads_per_process={value}"]
    return []


def write(tuned: TunedConfig) -> str:
    parts = parts_for(tuned, "accelerate")
    title = head(tuned, "under accelerate, with the tuned settings that accelerate can pass on")
    options_of = {name: flags(name, choice.value) for name, choice in tuned.knobs.items()}
    if not threads_by_variable(tuned):
        options_of.pop("intra_op_threads", None)
    new = [flag for found in options_of.values() for flag in found]
    native = {name for name, found in options_of.items() if found}
    if parts.launcher == "accelerate":
        options = without(parts.options, [flag.partition("=")[0] for flag in new])
    else:
        threads = own_threads(tuned)  # accelerate would give it one
        options = [
            "--num_processes=1",
            *(["--cpu"] if tuned.provenance.job_device == "cpu" else []),
            *([f"--num_cpu_threads_per_process={threads}"] if threads else []),
        ]
        if parts.options:
            left_out = " ".join(parts.options)
            title += comment(f"Left out, because accelerate starts python itself: {left_out}")
    if native & {"amp_dtype", "compile_mode"}:
        title += comment(
            "--mixed_precision and --dynamo_… reach a program through its accelerate.Accelerator();"
            " a program without one ignores them."
        )
    accelerate = launched_by(
        words_of(tuned)[0], ["accelerate", "launch"], "accelerate.commands.launch"
    )
    if "compile_mode" in native and tuned.knobs["compile_mode"].value in (*MODES, "regional"):
        title += comment(
            "accelerate compiles for every new shape of the batch (dynamic=False); tuned was"
            " dynamic=None, which compiles for any shape once it has seen a second one."
        )
    on_gpu = tuned.provenance.job_device == "cuda"
    values = {name: choice.value for name, choice in tuned.knobs.items()}
    half = values.get("amp_dtype") in ("bfloat16", "float16")
    with_tf32 = values.get("matmul_precision") in ("high", "medium")
    if on_gpu and "--dynamo_backend=inductor" in new and not half and not with_tf32:
        title += comment(tf32_note("--dynamo_backend", "after accelerate.Accelerator()"))
    return script(
        tuned, title, [*accelerate, *options, *new, *parts.program], native, {}, "accelerate"
    )


def tf32_note(option: str, when: str) -> str:
    """What to do about TF32, which ``option`` turns on in a job on a GPU."""
    return (
        f"{option} also turns on TF32, which the tuned runs did not use. Turn it off {when}, unless"
        ' the program uses TF32 anyway:\n    torch.set_float32_matmul_precision("highest")'
    )


ACCELERATE = Format("accelerate", "the job under accelerate launch", write, executable=True)
