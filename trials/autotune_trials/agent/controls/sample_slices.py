"""A module call taken apart by samples, and put together again.

    call = (args, kwargs)      cut    tensors as long as the batch are narrowed, all else (masks, flags, None) goes along
                               join   tensors as long as their part are concatenated, all else must be the same in each

What a tensor belongs to is told by its first dimension alone, so a result of this is held against
the whole before it is used (:mod:`.separability`).
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Inseparable(Exception):
    """The parts are not parts of one whole; ``str()`` says what is against it."""


def rows_of(torch: Any, call: Call) -> int | None:
    """Samples in a call: the length of its first tensor; None if it has none."""
    for leaf in _pytree().tree_flatten(call)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return int(leaf.shape[0])
    return None


def cut(torch: Any, call: Call, rows: int, size: int) -> list[Call]:
    """``call`` of ``rows`` samples as calls of at most ``size``, in order."""
    leaves, structure = _pytree().tree_flatten(call)
    pieces = [
        [
            leaf.narrow(0, start, min(size, rows - start)) if _has(torch, leaf, rows) else leaf
            for leaf in leaves
        ]
        for start in range(0, rows, size)
    ]
    return [_pytree().tree_unflatten(piece, structure) for piece in pieces]


def lengths_of(rows: int, size: int) -> list[int]:
    """Samples in each of the calls that :func:`cut` makes."""
    return [min(size, rows - start) for start in range(0, rows, size)]


def join(torch: Any, parts: Sequence[Any], lengths: Sequence[int]) -> Any:
    """One call, or one result, of all ``parts``, which hold ``lengths`` samples.

    Raises:
        Inseparable: a part holds something that belongs to it as a whole, such as its mean loss.
    """
    flat = [_pytree().tree_flatten(part) for part in parts]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise Inseparable("parts of a batch are of another structure than each other")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return _pytree().tree_unflatten(
        [_joined(torch, column, lengths) for column in columns], structure
    )


def leaves_of(tree: Any) -> list[Any]:
    """What stands at the ends of nested lists, tuples and dicts."""
    leaves: list[Any] = _pytree().tree_flatten(tree)[0]
    return leaves


def with_leaves(tree: Any, leaves: list[Any]) -> Any:
    """``tree`` with other things at its ends."""
    return _pytree().tree_unflatten(leaves, _pytree().tree_flatten(tree)[1])


def _joined(torch: Any, column: Sequence[Any], lengths: Sequence[int]) -> Any:
    first = column[0]
    if all(leaf is first for leaf in column) and (
        isinstance(first, (torch.Tensor, enum.Enum)) or not hasattr(first, "__dict__")
    ):
        # an object of the model's own that each pass fills anew would hold the last part alone
        return first
    if all(_has(torch, leaf, length) for leaf, length in zip(column, lengths, strict=True)):
        if any(leaf.shape[1:] != first.shape[1:] or leaf.dtype != first.dtype for leaf in column):
            raise Inseparable("samples are of different shapes from batch to batch")
        return torch.cat(list(column))
    if isinstance(first, torch.Tensor):
        raise Inseparable(
            "the model returns a value for the batch as a whole (its loss, perhaps). What that"
            " would be for other portions, only the model knows: a mean over samples, over tokens"
            " that are not masked, with terms of the batch. Compute the loss outside of the model"
            " from what it returns for each sample, or make the job's own flags for batch and"
            " accumulation knobs (via:)"
        )
    if isinstance(first, (bool, int, float, str)) and all(
        type(leaf) is type(first) and leaf == first for leaf in column
    ):
        return first
    raise Inseparable(
        f"a {type(first).__name__} among what the model takes or returns is not the same for all"
        " parts"
    )


def _has(torch: Any, leaf: Any, rows: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows


def _pytree() -> Any:
    # torch imports it itself; transformers and others register their outputs with it
    return sys.modules["torch.utils._pytree"]
