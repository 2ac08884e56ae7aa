"""The parameters an optimizer steps."""

from __future__ import annotations

from typing import Any


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters that ``optimizer`` steps, of all its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def own_shard(tensor: Any) -> Any:
    """The part of a DTensor (FSDP) in this process, without asking other ranks; other tensors as
    they are.
    """
    return tensor.to_local() if type(tensor).__name__ == "DTensor" else tensor
