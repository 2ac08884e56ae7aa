"""Records files written from C++ and Rust, which raise no audit events in Python, before they are
written (see file_watch.py).

Unlike the other patches, these stay when the agent steps aside: a job that is told to terminate may
save once more.
"""

from __future__ import annotations

import functools
from typing import Any

from autotune_trials.agent.patches.patch_set import untraced
from autotune_trials.agent.side_effects.file_watch import about_to_write


def watch_torch_save(module: Any) -> None:
    """``module``: torch.serialization. ``torch.save`` opens files by name in this place only."""
    _watch_method(module._open_zipfile_writer_file, "__init__")


def watch_torchscript(module: Any) -> None:
    """``module``: torch.jit._script. ``torch.jit.save`` also calls this method."""
    _watch_method(module.RecursiveScriptModule, "save")


def watch_safetensors(module: Any) -> None:
    """``module``: safetensors, from which its torch and numpy submodules import the function."""
    original = module.serialize_file

    @functools.wraps(original)
    def serialize_file(tensor_dict: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        about_to_write(filename)
        return original(tensor_dict, filename, *args, **kwargs)

    module.serialize_file = serialize_file


def _watch_method(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def save(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        about_to_write(path)
        return original(self, path, *args, **kwargs)

    setattr(owner, name, untraced(save))
