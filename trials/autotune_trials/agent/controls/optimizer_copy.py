"""Copies an optimizer's class and settings onto other parameters, for trials outside the job."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from autotune_trials.agent.facts.parameters import own_shard, parameters_of

TRIED = 67  # numbers: whole SIMD vectors on any processor, plus a remainder


def copy_of(
    torch: Any,
    optimizer: Any,
    implementation: str | None,
    parameters: Callable[[Any], Iterable[Any]],
) -> Any:
    """Copies ``optimizer`` without its state or a constructor call, which the agent would notice.

    Args:
        implementation: "for-loop", "foreach" or "fused"; None: the current setting.
        parameters: returns the parameters for the copy of a given group.
    """
    cls: Any = type(optimizer)
    if hasattr(cls, "__del__"):  # the end of a copy must close nothing that the job still uses

        class Copy(cls):
            def __del__(self) -> None: ...

        cls = Copy
    scratch = cls.__new__(cls)
    scratch.__dict__.update(optimizer.__dict__)
    scratch.state = defaultdict(dict)
    scratch.param_groups = []
    for group in optimizer.param_groups:
        copied = {**group, "params": list(parameters(group))}
        if torch.is_tensor(copied.get("lr")):
            copied["lr"] = copied["lr"].clone()
        if implementation is not None:
            copied["foreach"] = implementation == "foreach"
            if "fused" in copied:
                copied["fused"] = implementation == "fused"
        scratch.param_groups.append(copied)
    return scratch


def bare_step(optimizer: Any) -> Callable[[Any], object]:
    """The class's ``step`` without torch's hooks and profiler ranges, and so without ours; not
    compiled even where the job's own steps are.
    """
    step: Any = type(optimizer).step
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    if "torch._dynamo" in sys.modules:
        step = sys.modules["torch"].compiler.disable(step)
    found: Callable[[Any], object] = step
    return found


def fused_works(torch: Any, optimizer: Any) -> bool:
    """Whether torch's fused kernel accepts such parameters and changes them; tried on a few of each
    kind.

    SGD's silently leaves whole vectors of half precision unchanged on a CPU (torch 2.13). Adagrad's
    constructor accepts a GPU even where torch has no kernel for it, and its step raises; so do
    those of SGD and Adagrad for sharded parameters (FSDP). Waits for the device.
    """
    smallest_last = sorted(parameters_of(optimizer), key=lambda p: -p.numel())
    kinds = {(type(p), p.device, p.dtype): p for p in smallest_last}
    tried = [
        torch.zeros(TRIED, dtype=p.dtype, device=p.device)
        if own_shard(p) is p
        else torch.zeros_like(p)
        for p in kinds.values()
    ]
    for parameter in tried:
        parameter.grad = torch.ones_like(parameter)
    scratch = copy_of(torch, optimizer, "fused", lambda group: ())
    own = scratch.param_groups[0]
    # a group each: no kernel takes plain and sharded parameters together
    scratch.param_groups = [{**own, "params": [parameter], "lr": 1.0} for parameter in tried]
    try:
        with torch.no_grad():
            bare_step(optimizer)(scratch)
        return all(bool(own_shard(p).all()) for p in tried)
    except Exception:  # whatever torch raises: such a step would raise in the job, too
        return False
