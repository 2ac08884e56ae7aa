"""Lets the job save weights in channels_last with safetensors, which refuses any layout but the
contiguous one.
"""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.bootstrap import import_hook
from autotune_trials.agent.patches.patch_set import Patch, PatchSet


def install(patches: PatchSet) -> None:
    """Hook safetensors once the job has imported it."""

    def hook(module: Any) -> None:
        for name in ("save", "save_file"):
            patches.add(f"safetensors.{name}", module, name, _make)

    import_hook.call("safetensors.torch", hook)


def _make(patch: Patch, original: Any) -> Any:
    def save(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if patch.active and isinstance(tensors, dict):
            tensors = {
                name: value.contiguous() if getattr(value, "ndim", 0) in (4, 5) else value
                for name, value in tensors.items()
            }
        return original(tensors, *args, **kwargs)

    return save
