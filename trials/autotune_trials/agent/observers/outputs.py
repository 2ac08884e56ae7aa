"""Watches what the job writes: to the terminal, to its log, to files."""

from __future__ import annotations

import builtins
import gc
import os
import sys
from typing import Any

from autotune_trials.agent.observers.calls import About, CallObserver

NUMPY = ("save", "savez", "savez_compressed", "savetxt")


def install(calls: CallObserver) -> None:
    """Watch prints, log records, and the usual ways to write files, of the libraries that are
    loaded.
    """
    torch, loaded = calls.torch, sys.modules.get

    def printed(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About:
        if kwargs.get("file") is not None and kwargs["file"] not in (sys.stdout, sys.stderr):
            return About("file_write", detail="print(…, file=…)")
        device = device_of(torch, args)
        return About("print", device, "a tensor" if device else "")

    calls.watch_calls(builtins, "print", printed)
    calls.watch_calls(builtins, "open", opened)
    calls.watch_calls(gc, "collect", lambda args, kwargs, result: About("gc_collect"))
    calls.watch_calls(torch, "save", written("torch.save"))
    for module, owner, attributes in (
        ("logging", "Logger", ("handle",)),
        ("numpy", "", NUMPY),
        ("PIL.Image", "Image", ("save",)),
        ("matplotlib.figure", "Figure", ("savefig",)),
        ("pathlib", "Path", ("write_text", "write_bytes")),
    ):
        found = loaded(module)
        holder = getattr(found, owner, None) if owner else found
        for attribute in attributes:
            if holder is not None:
                label = f"{owner or module}.{attribute}"
                log = lambda args, kwargs, result: About("log")  # noqa: E731
                calls.watch_calls(holder, attribute, log if module == "logging" else written(label))


def written(label: str) -> Any:
    return lambda args, kwargs, result: About("file_write", detail=label)


def opened(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About | None:
    """Report only files opened for writing; the sampler sees the writes themselves, in the lines of
    the block.
    """
    mode = kwargs.get("mode", args[1] if len(args) > 1 else "r")
    if not any(letter in mode for letter in "wax+"):
        return None
    name = args[0] if args else kwargs.get("file", "")
    return About("file_write", detail=f"open({os.path.basename(str(name))!r}, {mode!r})")


def device_of(torch: Any, values: Any, depth: int = 2) -> str:
    """The device of the first tensor among ``values``; "" if there is none."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return str(value.device.type)
        if depth and isinstance(value, (list, tuple)) and len(value) < 100:
            found = device_of(torch, value, depth - 1)
        elif depth and isinstance(value, dict) and len(value) < 100:
            found = device_of(torch, value.values(), depth - 1)
        else:
            continue
        if found:
            return found
    return ""
