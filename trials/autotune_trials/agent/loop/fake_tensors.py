"""Tensors that hold no numbers: the job counts operators or memory with them, and trains nothing."""

from __future__ import annotations

from typing import Any


def without_numbers(tensors: Any) -> bool:
    """On the meta device, or fake; of several the first counts."""
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    try:
        return type(first).__name__ == "FakeTensor" or bool(first.is_meta)
    except Exception:  # no tensor, or a subclass that refuses to tell (torch's ExpandedWeight)
        return False
