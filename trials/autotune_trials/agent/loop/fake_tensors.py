"""Tensors without data: the job uses them to count operators or memory, and trains nothing."""

from __future__ import annotations

from typing import Any


def without_data(tensors: Any) -> bool:
    """Whether ``tensors`` are on the meta device or fake; of several, the first counts."""
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    try:
        return type(first).__name__ == "FakeTensor" or bool(first.is_meta)
    except Exception:  # not a tensor, or a subclass that refuses this (torch's ExpandedWeight)
        return False
