"""Tensors that hold no numbers: the job counts operators or memory with them, and trains nothing."""

from __future__ import annotations

from typing import Any


def without_numbers(tensors: Any) -> bool:
    """On the meta device, or fake; of several the first counts."""
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    if type(first).__name__ == "FakeTensor":
        return True
    try:
        return bool(getattr(first, "is_meta", False))
    except Exception:  # a subclass of Tensor may refuse to tell (torch's ExpandedWeight)
        return False
