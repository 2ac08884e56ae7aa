"""Exports the settings as arguments of transformers.TrainingArguments.

Names are those of transformers 5; 4 lacks dataloader_in_order and ddp_static_graph.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.export.formats.frameworks import Arguments, Framework, format_of
from autotune_spaces.base import Value
from autotune_spaces.knobs.compile_mode import MODES


def spell(knob: str, value: Value) -> Mapping[str, Arguments]:
    loader = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order")
    found: Arguments = {}
    if knob in loader:
        found = {f"dataloader_{knob}": value}
    elif knob == "batch_size":
        found = {"per_device_train_batch_size": value}
    elif knob == "amp_dtype":
        found = {"bf16": value == "bfloat16", "fp16": value == "float16"}
    elif knob == "matmul_precision" and value in ("highest", "high"):
        found = {"tf32": value == "high"}
    elif knob == "compile_mode" and value in ("off", "default", *MODES):
        found = {"torch_compile": value != "off"}
        found |= {"torch_compile_mode": value} if value in MODES else {}
    elif knob == "optimizer_impl" and value == "fused":
        found = {"optim": "adamw_torch_fused"}
    elif knob in ("ddp_bucket_cap_mb", "static_graph"):
        found = {f"ddp_{knob.removeprefix('ddp_')}": None if value == "unset" else value}
    return {"TUNED": found} if found else {}


TRAINING_ARGUMENTS = format_of(
    Framework(
        "training-arguments",
        "transformers.TrainingArguments",
        ("transformers", "trl", "sentence_transformers"),
        ("TrainingArguments(output_dir=..., **TUNED)",),
        spell,
    )
)
