"""An optimizer of the job's class and settings over other parameters, for trials that the job does
not notice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

TRIED = 67  # numbers: whole vectors of any processor, and some left over


def copy_of(
    torch: Any,
    optimizer: Any,
    implementation: str | None,
    parameters: Callable[[Any], Iterable[Any]],
) -> Any:
    """Without state, and made without its constructor, which the agent listens to.

    Args:
        implementation: "for-loop", "foreach" or "fused"; None: as ``optimizer`` is set now.
        parameters: those of the copy of a group, given the group.
    """
    cls: Any = type(optimizer)
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
    """Its class's step, without torch's hooks and profiler ranges, and with them ours."""
    step: Any = type(optimizer).step
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    found: Callable[[Any], object] = step
    return found


def fused_works(torch: Any, optimizer: Any) -> bool:
    """Whether torch's fused kernel takes parameters like these and changes them: tried on a few
    numbers of each kind.

    SGD's leaves whole vectors of half precision on a CPU as they are, and says nothing (torch
    2.13). Adagrad's constructor accepts a GPU also where torch has no kernel for it, and its step
    raises. Waits for the device.
    """
    kinds = {(p.device, p.dtype) for g in optimizer.param_groups for p in g["params"]}
    tried = [torch.zeros(TRIED, dtype=dtype, device=device) for device, dtype in kinds]
    for parameter in tried:
        parameter.grad = torch.ones_like(parameter)
    scratch = copy_of(torch, optimizer, "fused", lambda group: ())
    scratch.param_groups = [{**scratch.param_groups[0], "params": tried, "lr": 1.0}]
    try:
        with torch.no_grad():
            bare_step(optimizer)(scratch)
        return all(bool(p.all()) for p in tried)
    except Exception:  # whatever torch raises: such a step would raise in the job, too
        return False
