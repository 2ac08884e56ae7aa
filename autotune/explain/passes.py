"""Passes over memory: elementwise operators, reductions, norms, optimizer steps, and moves.

Moves compute nothing.
"""

from __future__ import annotations

import ast
import math

from autotune.explain.operands import (
    Rule,
    Unknown,
    base_name,
    broadcast,
    bytes_of,
    each,
    in_place,
    item_bytes,
    operand_bytes,
    promoted,
    shape_of,
    value_of,
)
from autotune.explain.trace import Signature


def elementwise(steps: float, result: str = "") -> Rule:
    """``steps`` per result element; ``result``: its type if it differs from the operands'."""

    def rule(signature: Signature) -> tuple[float, float]:
        tensors = signature.tensors
        shape = tensors[0][0] if in_place(signature) else broadcast([s for s, _ in tensors])
        dtype = tensors[0][1] if in_place(signature) else result or promoted(tensors)
        return steps * math.prod(shape), bytes_of(shape, dtype)

    return rule


def division(signature: Signature) -> tuple[float, float]:
    tensors = signature.tensors
    ints = not any("float" in d or "complex" in d for _, d in tensors)
    return elementwise(1, "float32" if ints and not in_place(signature) else "")(signature)


def reduction(steps: float, result: str = "", dims_at: int = 1, also: str = "") -> Rule:
    """``steps`` per element read; ``also``: type of a second result of the same shape (indices)."""

    def rule(signature: Signature) -> tuple[float, float]:
        shape, dtype = shape_of(signature, 0), signature.dtypes[0]
        dims = _dims(signature, dims_at, len(shape))
        kept = tuple(n for i, n in enumerate(shape) if i not in dims)
        written = bytes_of(kept, result or dtype) + (bytes_of(kept, also) if also else 0.0)
        return steps * math.prod(shape), written

    return rule


def extreme(signature: Signature) -> tuple[float, float]:
    """max and min in their three forms: of two tensors, of all elements, along one dimension.

    The last also returns the indices.
    """
    if len(signature.tensors) == 2:
        return elementwise(1)(signature)
    along = len(signature.values) > 1 and bool(signature.values[1])
    return reduction(1, also="int64" if along else "")(signature)


def _dims(signature: Signature, at: int, rank: int) -> set[int]:
    text = signature.values[at] if at < len(signature.values) else ""
    found = ast.literal_eval(text) if text else []
    if isinstance(found, list):
        dims = found
    else:  # sum and mean take dimensions as a list only; a plain number here is a dtype
        dims = [] if base_name(signature.name) in ("sum", "mean") else [found]
    return {d % rank for d in dims} if dims and rank else set(range(rank))


def like(steps: float, index: int = 0) -> Rule:
    """``steps`` per element of the operand at ``index``, as large as which the result is.

    Small further results, such as the gradients of weight and bias, are not counted.
    """

    def rule(signature: Signature) -> tuple[float, float]:
        shape = shape_of(signature, index)
        return steps * math.prod(shape), bytes_of(shape, signature.dtypes[index])

    return rule


def pool(signature: Signature) -> tuple[float, float]:
    """(input, kernel, stride, padding, dilation, ceil_mode): one step per element of each window.

    The indices are int64.
    """
    x, kernel = shape_of(signature, 0), value_of(signature, 1)
    spatial = len(kernel)
    s = value_of(signature, 2) or kernel
    p = each(value_of(signature, 3), spatial)
    d = each(value_of(signature, 4), spatial)
    s = each(s, spatial)
    round_ = math.ceil if signature.values[5] == "True" else math.floor
    sizes = [
        round_((n + 2 * p[i] - d[i] * (kernel[i] - 1) - 1) / s[i]) + 1
        for i, n in enumerate(x[-spatial:])
    ]
    out = (*x[:-spatial], *sizes)
    written = bytes_of(out, signature.dtypes[0]) + bytes_of(out, "int64")
    return float(math.prod(out) * math.prod(kernel)), written


def lists(steps: float, written: int) -> Rule:
    """Optimizer steps over lists of tensors: ``steps`` per element of the first list.

    ``written``: how many of the lists are also written.
    """

    def rule(signature: Signature) -> tuple[float, float]:
        lists = [
            (s, d)
            for s, d in zip(signature.shapes, signature.dtypes)
            if s and isinstance(s[0], tuple)
        ]
        elements = [sum(math.prod(s) for s in shapes) for shapes, _ in lists]
        item = item_bytes(lists[0][1])
        # lists of step counters are smaller than lists of parameters
        same = [n for n in elements if n == elements[0]]
        return steps * elements[0], float(item * min(written, max(len(same) - 1, 1)) * elements[0])

    return rule


# ---------------------------------------------------------------- moves: all bytes


def whole_operands(signature: Signature) -> tuple[float, float]:
    return 0.0, operand_bytes(signature)


def copy(signature: Signature) -> tuple[float, float]:
    """copy_(to, from): ``to`` is written, ``from`` is read, at its own size if it is broadcast."""
    return 0.0, bytes_of(shape_of(signature, 0), signature.dtypes[0]) + bytes_of(
        shape_of(signature, 1), signature.dtypes[1]
    )


def fill(signature: Signature) -> tuple[float, float]:
    return 0.0, bytes_of(shape_of(signature, 0), signature.dtypes[0])


def index_select(signature: Signature) -> tuple[float, float]:
    """(table, dim, indices): the picked rows are read and written."""
    table, indices = shape_of(signature, 0), shape_of(signature, 2)
    dim = int(value_of(signature, 1)) % len(table)
    picked = (
        math.prod(indices)
        * math.prod(n for i, n in enumerate(table) if i != dim)
        * item_bytes(signature.dtypes[0])
    )
    return 0.0, 2.0 * picked + bytes_of(indices, signature.dtypes[2])


def embedding(signature: Signature) -> tuple[float, float]:
    table, indices = shape_of(signature, 0), shape_of(signature, 1)
    picked = math.prod(indices) * table[-1] * item_bytes(signature.dtypes[0])
    return 0.0, 2.0 * picked + bytes_of(indices, signature.dtypes[1])


def embedding_backward(signature: Signature) -> tuple[float, float]:
    """(grad, indices, rows): the gradient of the whole table is written."""
    grad, rows = shape_of(signature, 0), int(value_of(signature, 2))
    return float(math.prod(grad)), bytes_of((rows, grad[-1]), signature.dtypes[0])


def gather(signature: Signature) -> tuple[float, float]:
    indices = shape_of(signature, 2)
    return 0.0, bytes_of(indices, signature.dtypes[2]) + 2 * bytes_of(indices, signature.dtypes[0])


def unknown(reason: str) -> Rule:
    def rule(signature: Signature) -> tuple[float, float]:
        raise Unknown(reason)

    return rule
