"""Names the library that owns the code a setting belongs in, and its own equivalent option."""

from __future__ import annotations

from pathlib import PurePath

from autotune_spaces.knobs.compile_mode import MODES

_TRAINER = {
    "num_workers": "TrainingArguments(dataloader_num_workers={value})",
    "prefetch_factor": "TrainingArguments(dataloader_prefetch_factor={value})",
    "persistent_workers": "TrainingArguments(dataloader_persistent_workers={value})",
    "pin_memory": "TrainingArguments(dataloader_pin_memory={value})",
    "batch_size": (
        "TrainingArguments(per_device_train_batch_size={value}), divided by the GPUs of"
        " nn.DataParallel if it is used"
    ),
    "amp_dtype": "TrainingArguments({short}16=True)",
    "compile_mode": (
        "TrainingArguments(torch_compile=True, torch_compile_mode={value!r}), which also turns on"
        " TF32 on a GPU"
    ),
    "optimizer_impl": 'TrainingArguments(optim="adamw_torch_fused") for fused AdamW',
}
_LIGHTNING = {"amp_dtype": 'Trainer(precision="{lightning}-mixed")'}
# Library -> knob -> the library's own option. Names as in transformers 4 and 5, Lightning 2,
# accelerate 1.
OPTIONS: dict[str, dict[str, str]] = {
    "transformers": _TRAINER,
    "trl": _TRAINER,
    "sentence_transformers": _TRAINER,
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "accelerate": {
        "amp_dtype": 'Accelerator(mixed_precision="{short}16")',
        "non_blocking": "DataLoaderConfiguration(non_blocking=True)",
    },
}


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


def option(file: str, knob: str, value: object) -> str:
    """How to set ``value`` in the library that owns ``file``; "" if unknown."""
    template = OPTIONS.get(PurePath(file).parts[0] if file else "", {}).get(knob, "")
    if knob == "compile_mode" and value not in ("default", *MODES):
        return ""
    if knob == "optimizer_impl" and value != "fused":
        return ""
    short, lightning = {"bfloat16": ("bf", "bf16"), "float16": ("fp", "16")}.get(
        str(value), ("", "")
    )
    return template.format(value=value, short=short, lightning=lightning)
