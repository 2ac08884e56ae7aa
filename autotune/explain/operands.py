"""What a trace says about one call: its operands, their shapes, types and bytes."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from autotune.explain.trace import Shape, Signature

# FLOPs of a call and bytes that it writes; of moves, which may read a part of an operand: all bytes
Rule = Callable[[Signature], tuple[float, float]]


class Unknown(Exception):
    """The trace does not record what is needed; ``str()`` says what."""


def base_name(name: str) -> str:
    """The name without ``aten::`` and the in-place suffix; namespaces of backends stay."""
    name = name.removeprefix("aten::")
    return name if name.startswith("__") else name.removesuffix("_")


def in_place(signature: Signature) -> bool:
    return signature.name.endswith("_") and not signature.name.endswith("__")


def shape_of(signature: Signature, index: int) -> Shape:
    if not signature.dtypes[index]:
        raise IndexError(index)
    return signature.shapes[index]  # type: ignore[return-value]


def value_of(signature: Signature, index: int) -> Any:
    return ast.literal_eval(signature.values[index])


def each(value: Any, spatial: int) -> list[int]:
    """One number per spatial dimension, from an argument that may hold one number for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * spatial if len(values) == 1 else values


def item_bytes(dtype: str) -> int:
    if dtype == "list":
        raise Unknown("the trace does not record the types of the tensors in a list")
    if dtype == "bool":
        return 1
    bits = re.fullmatch(r"[a-z]+(\d+)(?:_\w+)?", dtype)  # float8_e4m3fn
    if bits is None:
        raise KeyError(dtype)
    return int(bits[1]) // 8


def bytes_of(shape: Shape, dtype: str) -> float:
    return float(math.prod(shape) * item_bytes(dtype))


def operand_bytes(signature: Signature) -> float:
    """Bytes of all tensor operands."""
    whole = 0.0
    for shape, dtype in zip(signature.shapes, signature.dtypes):
        if dtype:
            of_list = bool(shape) and isinstance(shape[0], tuple)
            shapes: Any = shape if of_list else (shape,)
            whole += sum(bytes_of(one, dtype) for one in shapes)
    return whole


def broadcast(shapes: Sequence[Shape]) -> Shape:
    length = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (length - len(s)) + tuple(s) for s in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded))


def promoted(tensors: Sequence[tuple[Shape, str]]) -> str:
    """The type of an elementwise result, by torch's rules.

    Tensors without dimensions count only if they are of a higher category.
    """

    def category(dtype: str) -> int:
        if dtype.startswith("complex"):
            return 3
        if "float" in dtype:
            return 2
        return 0 if dtype == "bool" else 1

    top = max(category(d) for _, d in tensors)
    highest = [(s, d) for s, d in tensors if category(d) == top]
    full = [d for s, d in highest if s] or [d for _, d in highest]
    if {"bfloat16", "float16"} <= set(full):
        return "float32"
    return max(full, key=item_bytes)
