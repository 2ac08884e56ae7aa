"""How many samples a batch holds, and copies of a batch: batches are whatever the job's collate
function returns.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

PLAIN = (str, bytes, int, float, complex, type(None))  # hold nothing else
MAX_DEPTH = 6
MAX_SIZES = 64  # lengths examined in one batch


def samples_of(batch: Any, expected: int | None = None) -> float:
    """Samples in ``batch``.

    ``num_graphs`` where there is one (torch-geometric counts graphs, its tensors nodes); else
    ``expected``, if a first dimension or a list in the batch has that length; else the first
    dimension of the first tensor; else the length of the first list; else 1.
    """
    if type(batch) in (list, tuple) and batch:  # the common (inputs, targets), without the walk
        shape = _attribute(batch[0], "shape")
        if shape and shape[0] == expected:
            return float(shape[0])
    graphs = _attribute(batch, "num_graphs")
    if isinstance(graphs, int) and graphs > 0:
        return float(graphs)
    first_tensor = first_list = None
    for seen, (size, tensor) in enumerate(_sizes(batch, 0)):
        if size == expected:
            return float(size)
        if tensor and first_tensor is None:
            first_tensor = size
        elif not tensor and first_list is None:
            first_list = size
        if seen >= MAX_SIZES:
            break
    found = first_tensor if first_tensor is not None else first_list
    return float(found) if found else 1.0


def _attribute(item: Any, name: str) -> Any:
    """An attribute of ``item``; None if there is none. Many a dict with attributes raises KeyError
    then.
    """
    try:
        return getattr(item, name, None)
    except KeyError:
        return None


def _sizes(item: Any, depth: int) -> Iterator[tuple[int, bool]]:
    """(length, is it a tensor) of everything in ``item`` that has a length along its first
    dimension.
    """
    shape = _attribute(item, "shape")
    if shape is not None:
        if len(shape):
            yield int(shape[0]), True
        return
    if depth > MAX_DEPTH or isinstance(item, PLAIN):
        return
    if isinstance(item, (list, tuple)) and item and (depth > 0 or _words(item)):
        yield len(item), False  # the outermost one is the pair (inputs, targets)
    for part in _parts(item):
        yield from _sizes(part, depth + 1)


def _words(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(part, str) for part in item)


def _parts(item: Any) -> list[Any]:
    if isinstance(item, (list, tuple)):
        return list(item[:MAX_SIZES])
    if isinstance(item, Mapping):  # dict, UserDict, BatchEncoding
        return list(item.values())
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [getattr(item, field.name) for field in dataclasses.fields(item)]
    return list(getattr(item, "__dict__", {}).values())


def copy_batch(batch: Any) -> Any:
    """A copy that shares no tensor with ``batch``; pinned tensors stay pinned. Anything that cannot
    be copied is shared."""
    clone = _attribute(batch, "clone")
    if clone is not None and _attribute(batch, "is_pinned") is not None:
        if hasattr(batch, "detach") and batch.device.type == "cpu" and batch.is_pinned():
            return _pinned_copy(batch)
        return clone()
    if isinstance(batch, PLAIN):
        return batch
    if type(batch) in (list, tuple):
        return type(batch)(copy_batch(part) for part in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # namedtuple
        return type(batch)(*(copy_batch(part) for part in batch))
    if type(batch) is dict:
        return {key: copy_batch(value) for key, value in batch.items()}
    try:
        if clone is None and isinstance(batch, dict):  # deepcopy fails for some classes
            copied = copy.copy(batch)
            for key, value in batch.items():
                copied[key] = copy_batch(value)
            return copied
        copied = clone() if clone is not None else copy.deepcopy(batch)
        # neither keeps memory pinned
        return _pinned(copied) if any(t.is_pinned() for t in tensors_of(batch)) else copied
    # what cannot be copied (an open file, a lock) is shared: only a job that changes its batch in
    # place would notice
    except Exception:
        return batch


def _pinned(batch: Any) -> Any:
    """``batch`` as the DataLoader pins it: a class of the job's own by its ``pin_memory``."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)


def _pinned_copy(tensor: Any) -> Any:
    """A pinned copy in a single step, because the job waits for it."""
    import torch

    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def tensors_of(batch: Any, depth: int = 0) -> list[Any]:
    """The tensors in ``batch``, in the same order for every batch of this structure."""
    if _attribute(batch, "element_size") is not None and hasattr(batch, "numel"):
        return [batch]
    if depth > MAX_DEPTH or isinstance(batch, PLAIN):
        return []
    return [tensor for part in _parts(batch) for tensor in tensors_of(part, depth + 1)]


class Weight(NamedTuple):
    """What a batch consists of; nothing if it cannot be determined."""

    bytes: int = 0
    tensors: int = 0
    on_gpu: bool = False  # some of it comes from the loader that way


def tensors_in(torch: Any, tree: Any) -> list[Any]:
    """The tensors of nested containers known to torch's pytrees: a model's arguments or outputs."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def weight_of(batch: Any) -> Weight:
    try:
        tensors = tensors_of(batch)
        size = sum(int(tensor.element_size() * tensor.numel()) for tensor in tensors)
        return Weight(size, len(tensors), any(tensor.is_cuda for tensor in tensors))
    except Exception:  # a tensor type of the job's own
        return Weight()
