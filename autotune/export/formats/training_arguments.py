"""Exports the settings as arguments of transformers.TrainingArguments.

Names are those of transformers 5; 4 lacks dataloader_in_order and ddp_static_graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.export.formats.accelerate import tf32_note
from autotune.export.formats.frameworks import Arguments, Framework, format_of, loader_words
from autotune.export.formats.resources import replicas
from autotune.export.tuned import TunedConfig
from autotune_spaces.knobs.compile_mode import MODES

LIBRARIES = ("transformers", "trl", "sentence_transformers")


def spell(tuned: TunedConfig, knob: str) -> Mapping[str, Arguments]:
    value = tuned.knobs[knob].value
    loader = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order")
    found: Arguments = {}
    if knob in loader:
        found = {f"dataloader_{name}": given for name, given in loader_words(knob, value).items()}
    elif knob == "batch_size":
        each = value // replicas(tuned) if isinstance(value, int) else value
        found = {"per_device_train_batch_size": each}
    elif knob == "amp_dtype":
        found = {"bf16": value == "bfloat16", "fp16": value == "float16"}
    elif knob == "matmul_precision" and value == "high":  # tf32=False affects convolutions, too
        found = {"tf32": True}
    elif knob == "compile_mode" and value in ("off", "default", *MODES):
        found = {"torch_compile": value != "off"}
        found |= {"torch_compile_mode": value} if value in MODES else {}
    elif knob == "optimizer_impl" and value == "fused":
        found = {"optim": "adamw_torch_fused"}
    elif knob in ("ddp_bucket_cap_mb", "static_graph"):
        found = {f"ddp_{knob.removeprefix('ddp_')}": None if value == "unset" else value}
    return {"TUNED": found} if found else {}


def notes(tuned: TunedConfig, groups: Mapping[str, Arguments]) -> Sequence[str]:
    given, found = groups.get("TUNED", {}), []
    if "optim" in given:
        found.append("optim is for AdamW; with another optimizer, leave it out.")
    for name in sorted({"dataloader_in_order", "ddp_static_graph"} & {*given}):
        found.append(f"{name} is an argument of transformers 5, not of 4.")
    gpus = replicas(tuned)
    if "per_device_train_batch_size" in given and gpus > 1:
        found.append(f"per_device_train_batch_size is for the {gpus} GPUs of the tuned job.")
    on_gpu = tuned.provenance.job_device == "cuda"
    with_tf32 = "matmul_precision" in tuned.knobs and (
        tuned.knobs["matmul_precision"].value != "highest"
    )
    if on_gpu and given.get("torch_compile") and not given.get("fp16") and not with_tf32:
        found.append(tf32_note("torch_compile", "before trainer.train()"))
    return found


TRAINING_ARGUMENTS = format_of(
    Framework(
        "training-arguments",
        "transformers.TrainingArguments",
        LIBRARIES,
        "TrainingArguments(output_dir=..., **TUNED)",
        spell,
        notes,
    )
)
