"""The registry: one line per knob, in display order. A new knob adds a line below, and a file of that
name here with the class: ``num_workers``, ``NumWorkers``.

A module is imported when its knob is first requested, so the agent loads only the knobs it has to
set.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from autotune_spaces.base import VARIABLE_PREFIX, Knob, Value

_KNOBS = """
    num_workers
    prefetch_factor
    persistent_workers
    in_order
    pin_memory
    non_blocking
    cuda_prefetch
    batch_size
    amp_dtype
    matmul_precision
    cudnn_benchmark
    cudnn_benchmark_limit
    cudnn_workspace_mib
    sdpa_backend
    compile_mode
    channels_last
    optimizer_impl
    intra_op_threads
    cpu_affinity
    malloc
    cuda_alloc_conf
    gc
    ddp_bucket_cap_mb
    gradient_as_bucket_view
    static_graph
    nccl
""".split()


def names() -> tuple[str, ...]:
    return tuple(_KNOBS)


def kind(name: str) -> type[Knob]:
    """The class of a registered knob.

    Raises:
        KeyError: no such knob.
    """
    if name not in _KNOBS:
        raise KeyError(name)
    class_name = name.title().replace("_", "")
    cls: type[Knob] = getattr(importlib.import_module(f"{__name__}.{name}"), class_name)
    return cls


@cache
def get(name: str) -> Knob:
    """A registered knob with its default values: for its card, scope and numerics.

    Raises:
        KeyError: no such knob.
    """
    return kind(name)()


def create(
    name: str, options: Mapping[str, Value] | None = None, values: Sequence[Value] | None = None
) -> Knob:
    """A knob as described in a job file. A ``via`` entry in ``options`` makes it a user-defined one
    (:mod:`.via`).

    Raises:
        KeyError: no such knob.
        ValueError: the options are invalid; ``str()`` says why.
    """
    if options and "via" in options:
        from autotune_spaces.knobs.via import ViaKnob

        return ViaKnob(name, values, options)
    return kind(name)(values, options)


def at_start(environ: Mapping[str, str]) -> None:
    """Let process knobs act on their variables in ``environ``; the agent calls this when a Python
    process of the command starts.

    Only the requested knobs are imported, so that launchers and shell helpers start without delay.
    """
    for variable in list(environ):
        name = variable.removeprefix(VARIABLE_PREFIX).lower()
        if variable.startswith(VARIABLE_PREFIX) and name in _KNOBS:
            get(name).at_start(environ)


def at_import(torch: Any, environ: Mapping[str, str]) -> None:
    """Let process knobs act on their variables in ``environ``; the agent calls this right after
    ``import torch``.
    """
    if any(variable.startswith(VARIABLE_PREFIX) for variable in environ):
        for name in names():
            get(name).at_import(torch, environ)


__all__ = ["at_import", "at_start", "create", "get", "kind", "names"]
