"""Exports the settings as arguments of lightning.Trainer and its DataLoader (Lightning 2 names)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.export.formats.frameworks import Arguments, Framework, format_of, loader_words
from autotune.export.tuned import TunedConfig

LIBRARIES = ("lightning", "pytorch_lightning")
CLIPPING = (
    "With mixed precision, Lightning refuses gradient_clip_val beside an optimizer built with"
    " fused=True; under `autotune launch` both work."
)


def spell(tuned: TunedConfig, knob: str) -> Mapping[str, Arguments]:
    value = tuned.knobs[knob].value
    loader = (
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "pin_memory",
        "in_order",
        "batch_size",
    )
    precision = {"bfloat16": "bf16-mixed", "float16": "16-mixed", "off": "32-true"}
    if knob in loader:
        return {"DATALOADER": loader_words(knob, value)}
    if knob == "amp_dtype":
        return {"TRAINER": {"precision": precision[str(value)]}}
    if knob == "cudnn_benchmark":
        return {"TRAINER": {"benchmark": value}}
    return {}


def notes(tuned: TunedConfig, groups: Mapping[str, Arguments]) -> Sequence[str]:
    fused = "optimizer_impl" in tuned.knobs and tuned.knobs["optimizer_impl"].value == "fused"
    return [CLIPPING] if fused else []


LIGHTNING = format_of(
    Framework(
        "lightning",
        "lightning.Trainer",
        LIBRARIES,
        "Trainer(..., **TRAINER) and DataLoader(..., **DATALOADER), whichever appear below.",
        spell,
        notes,
    )
)
