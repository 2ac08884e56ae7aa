"""FLOPs and bytes of one call of an operator, from the shapes and types in a trace.

    matrix products     2·m·n·k, forward and backward; convolutions and attention alike, as products of their sizes. The bias
                        of addmm, linear and convolutions is not counted, nor are masks: :mod:`torch.utils.flop_counter` counts
                        so, and a test holds the two together. (The formulas stand here since the tuner does not load torch.)
    elementwise         1 for each arithmetic step and result element; a function such as exp or tanh is one step (PER_ELEMENT)
    reductions          1 for each element read
    bytes               each operand read once and each result written once, in their own types: what memory must move if
                        nothing is read twice. What an operator changes in place is both.

An operator that hands its work on (``aten::linear`` calls ``aten::addmm``) is counted where the work is done, and only there.
What is not known here stays None, with the reason.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from autotune.explain.records import Operator
from autotune.explain.trace import Shape, Signature

ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


class Kind(IntEnum):
    """What an operator does; the higher is counted where one calls the other."""

    MOVE = 1  # copies, fills, gathers: no arithmetic
    LIGHT = 2  # elementwise, reductions, norms, optimizer steps
    PRODUCT = 3  # matrix products, convolutions, attention: the model FLOPs


@dataclass(frozen=True)
class Work:
    """Of one call."""

    flops: float | None = None
    nbytes: float | None = None
    why: str = ""  # why something is None


Rule = Callable[[Signature], tuple[float, float]]


def kind(name: str) -> Kind | None:
    """What kind of work an operator does itself; None: none that is known here."""
    found = RULES.get(_base(name))
    return found[0] if found else None


def work(signature: Signature, list_dtype: str = "") -> Work:
    """FLOPs and bytes of one call.

    Args:
        list_dtype: type of the tensors in lists, which a trace does not tell; "" if it is not known.
    """
    if _base(signature.name) in VIEWS:
        return Work(0.0, 0.0)
    found = RULES.get(_base(signature.name))
    if found is None:
        return Work(why=f"how much {signature.name} computes is not known here")
    if list_dtype and "list" in signature.dtypes:
        signature = Signature(signature.name, signature.shapes, tuple(list_dtype if d == "list" else d for d in signature.dtypes), signature.values)
    try:
        flops, nbytes = found[1](signature)
    except _Unknown as error:
        return Work(why=str(error))
    except (IndexError, KeyError, TypeError, ValueError, SyntaxError):
        return Work(why=f"the trace does not have the shapes and types of {signature.name}")
    return Work(flops, nbytes)


def model_flops(operators: Sequence[Operator], steps: int) -> float | None:
    """FLOPs of the model a step, forward and backward: matrix products, convolutions, attention over ``steps`` profiled
    iterations. What is computed again (checkpointing) counts again. None: nothing of the kind was counted."""
    counted = [row.flops * row.calls for row in operators if row.flops is not None and kind(row.name) is Kind.PRODUCT]
    return sum(counted) / steps if counted and steps > 0 else None


def hands_on(name: str) -> bool:
    """An operator that only calls others: what it takes itself is dispatch and bookkeeping."""
    return _base(name) in WRAPPERS or name.startswith(("autograd::engine::", "torch::autograd::")) or name.endswith(("Backward0", "Backward1"))


class _Unknown(Exception):
    pass


# ---------------------------------------------------------------- reading a signature


def _base(name: str) -> str:
    """``aten::add_`` and ``aten::add`` are one; backends' own namespaces stay."""
    name = name.removeprefix("aten::")
    return name if name.startswith("__") else name.removesuffix("_")


def _in_place(signature: Signature) -> bool:
    return signature.name.endswith("_") and not signature.name.endswith("__")


def _shape(signature: Signature, index: int) -> Shape:
    if not signature.dtypes[index]:
        raise IndexError(index)
    return signature.shapes[index]  # type: ignore[return-value]


def _value(signature: Signature, index: int) -> Any:
    return ast.literal_eval(signature.values[index])


def _item(dtype: str) -> int:
    if dtype == "list":
        raise _Unknown("the trace does not tell the types of the tensors in a list")
    return ITEM_BYTES[dtype]


def _bytes(shape: Shape, dtype: str) -> float:
    return float(math.prod(shape) * _item(dtype))


def _operand_bytes(signature: Signature, *but: int) -> float:
    """All tensor operands, those at the places ``but`` left out."""
    whole = 0.0
    for place, (shape, dtype) in enumerate(zip(signature.shapes, signature.dtypes)):
        if dtype and place not in but:
            of_list = bool(shape) and isinstance(shape[0], tuple)
            shapes: Any = shape if of_list else (shape,)
            whole += sum(_bytes(one, dtype) for one in shapes)
    return whole


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    length = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (length - len(s)) + tuple(s) for s in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded))


def _promoted(tensors: Sequence[tuple[Shape, str]]) -> str:
    """The type of an elementwise result, after torch's rules: tensors of no dimension count only where they are of a higher sort."""

    def sort(dtype: str) -> int:
        return 3 if dtype.startswith("complex") else 2 if "float" in dtype else 0 if dtype == "bool" else 1

    highest = max(sort(d) for _, d in tensors)
    full = [d for s, d in tensors if s and sort(d) == highest] or [d for _, d in tensors if sort(d) == highest]
    if {"bfloat16", "float16"} <= set(full):
        return "float32"
    return max(full, key=lambda d: _item(d))


# ---------------------------------------------------------------- matrix products


def _mm(first: int) -> Rule:
    """``mm``, ``bmm``, ``addmm``, ``baddbmm``: the two matrices at ``first`` and after it."""

    def rule(signature: Signature) -> tuple[float, float]:
        a, b = _shape(signature, first), _shape(signature, first + 1)
        result = (*a[:-1], b[-1])
        return 2.0 * math.prod(a) * b[-1], _operand_bytes(signature) + _bytes(result, signature.dtypes[first])

    return rule


def _mv(first: int) -> Rule:
    def rule(signature: Signature) -> tuple[float, float]:
        a = _shape(signature, first)
        return 2.0 * math.prod(a), _operand_bytes(signature) + _bytes(a[:-1], signature.dtypes[first])

    return rule


def _linear(signature: Signature) -> tuple[float, float]:
    x, weight = _shape(signature, 0), _shape(signature, 1)
    return 2.0 * math.prod(x) * weight[0], _operand_bytes(signature) + _bytes((*x[:-1], weight[0]), signature.dtypes[0])


def _linear_backward(signature: Signature) -> tuple[float, float]:
    """(input, grad_output, weight, mask)"""
    x, weight, mask = _shape(signature, 0), _shape(signature, 2), _value(signature, 3)
    results = [x, weight, weight[:1]]
    written = sum(_bytes(s, signature.dtypes[0]) for s, wanted in zip(results, mask) if wanted)
    return 2.0 * math.prod(x) * weight[0] * sum(map(bool, mask[:2])), _operand_bytes(signature) + written


def _convolution(stride: int, padding: int, dilation: int, transposed: int = -1, groups: int = -1, output_padding: int = -1) -> Rule:
    """A convolution's forward; the places of its arguments differ between backends."""

    def rule(signature: Signature) -> tuple[float, float]:
        x, weight = _shape(signature, 0), _shape(signature, 1)
        is_transposed = transposed == -2 or (transposed >= 0 and bool(_value(signature, transposed)))
        spatial = len(x) - 2
        s, p, d = (_each(_value(signature, at), spatial) for at in (stride, padding, dilation))
        kernel = weight[2:]
        if is_transposed:
            extra = _each(_value(signature, output_padding), spatial)
            sizes = [(n - 1) * s[i] - 2 * p[i] + d[i] * (kernel[i] - 1) + extra[i] + 1 for i, n in enumerate(x[2:])]
            result = (x[0], weight[1] * int(_value(signature, groups)), *sizes)
            flops = 2.0 * x[0] * math.prod(x[2:]) * math.prod(weight)
        else:
            sizes = [(n + 2 * p[i] - d[i] * (kernel[i] - 1) - 1) // s[i] + 1 for i, n in enumerate(x[2:])]
            result = (x[0], weight[0], *sizes)
            flops = 2.0 * x[0] * math.prod(sizes) * math.prod(weight)
        return flops, _operand_bytes(signature) + _bytes(result, signature.dtypes[0])

    return rule


def _each(value: Any, spatial: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * spatial if len(values) == 1 else values


def _convolution_backward(signature: Signature) -> tuple[float, float]:
    """(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask)"""
    grad, x, weight = (_shape(signature, i) for i in range(3))
    over = x if _value(signature, 7) else grad  # the side whose every position meets the whole kernel
    mask = _value(signature, 10)
    one = 2.0 * over[0] * math.prod(over[2:]) * math.prod(weight)
    results = [x, weight, (grad[1],)]
    written = sum(_bytes(s, signature.dtypes[1]) for s, wanted in zip(results, mask) if wanted)
    return one * sum(map(bool, mask[:2])), _operand_bytes(signature) + written


def _attention(heads_second: bool = True) -> Rule:
    """softmax(q·kᵀ)·v with tensors [batch, heads, sequence, features], or heads after the sequence."""

    def rule(signature: Signature) -> tuple[float, float]:
        q, k, v = (_shape(signature, i) for i in range(3))
        batch, heads, queries, keys = _attention_sizes(q, k, heads_second)
        pairs = 2.0 * batch * heads * queries * keys
        written = _bytes((*q[:-1], v[-1]), signature.dtypes[0]) + 4.0 * batch * heads * queries  # the result and its logsumexp
        return pairs * (q[-1] + v[-1]), _operand_bytes(signature) + written

    return rule


def _attention_backward(heads_second: bool = True) -> Rule:
    """(grad, q, k, v, …): q·kᵀ again, and the four products of the gradient."""

    def rule(signature: Signature) -> tuple[float, float]:
        _, q, k, v = (_shape(signature, i) for i in range(4))
        batch, heads, queries, keys = _attention_sizes(q, k, heads_second)
        pairs = 2.0 * batch * heads * queries * keys
        written = sum(_bytes(s, signature.dtypes[1]) for s in (q, k, v))
        return pairs * (3 * q[-1] + 2 * v[-1]), _operand_bytes(signature) + written

    return rule


def _attention_sizes(q: Shape, k: Shape, heads_second: bool) -> tuple[int, int, int, int]:
    heads, sequence = (1, 2) if heads_second else (2, 1)
    return q[0], q[heads], q[sequence], k[sequence]


# ---------------------------------------------------------------- elementwise, reductions, norms


def _elementwise(steps: float, result: str = "") -> Rule:
    """``steps`` for each result element; ``result``: its type where it is not that of the operands."""

    def rule(signature: Signature) -> tuple[float, float]:
        tensors = [(s, d) for s, d in signature.tensors]
        shape = tensors[0][0] if _in_place(signature) else _broadcast([s for s, _ in tensors])
        dtype = tensors[0][1] if _in_place(signature) else result or _promoted(tensors)
        return steps * math.prod(shape), _operand_bytes(signature) + _bytes(shape, dtype)

    return rule


def _division(signature: Signature) -> tuple[float, float]:
    tensors = signature.tensors
    ints = not any("float" in d or "complex" in d for _, d in tensors)
    return _elementwise(1, "float32" if ints and not _in_place(signature) else "")(signature)


def _reduction(steps: float, result: str = "", dims_at: int = 1, also: str = "") -> Rule:
    """``steps`` for each element read; ``also``: type of a second result of the same shape (indices)."""

    def rule(signature: Signature) -> tuple[float, float]:
        shape, dtype = _shape(signature, 0), signature.dtypes[0]
        dims = _dims(signature, dims_at, len(shape))
        kept = tuple(n for i, n in enumerate(shape) if i not in dims)
        written = _bytes(kept, result or dtype) + (_bytes(kept, also) if also else 0.0)
        return steps * math.prod(shape), _bytes(shape, dtype) + written

    return rule


def _extreme(signature: Signature) -> tuple[float, float]:
    """max and min are three operators: of two tensors, of all elements, and along one dimension with the indices."""
    if len(signature.tensors) == 2:
        return _elementwise(1)(signature)
    along = len(signature.values) > 1 and bool(signature.values[1])
    return _reduction(1, also="int64" if along else "")(signature)


def _dims(signature: Signature, at: int, rank: int) -> set[int]:
    text = signature.values[at] if at < len(signature.values) else ""
    found = ast.literal_eval(text) if text else []
    dims = found if isinstance(found, list) else [] if _base(signature.name) in ("sum", "mean") else [found]  # theirs are lists, a number is a dtype
    return {d % rank for d in dims} if dims and rank else set(range(rank))


def _like_first(steps: float, outputs: float = 1.0) -> Rule:
    """``steps`` an element of the first operand; results as large as ``outputs`` of it; small ones are not counted."""

    def rule(signature: Signature) -> tuple[float, float]:
        shape = _shape(signature, 0)
        return steps * math.prod(shape), _operand_bytes(signature) + outputs * _bytes(shape, signature.dtypes[0])

    return rule


def _norm_backward(steps: float) -> Rule:
    """(grad, input, …): the gradients of the input and of weight and bias."""

    def rule(signature: Signature) -> tuple[float, float]:
        shape = _shape(signature, 1)
        return steps * math.prod(shape), _operand_bytes(signature) + _bytes(shape, signature.dtypes[1])

    return rule


def _pool(signature: Signature) -> tuple[float, float]:
    """(input, kernel, stride, padding, dilation, ceil_mode): one step for each element of each window; the indices are int64."""
    x, kernel = _shape(signature, 0), _value(signature, 1)
    spatial = len(kernel)
    s, p, d = _value(signature, 2) or kernel, _each(_value(signature, 3), spatial), _each(_value(signature, 4), spatial)
    s = _each(s, spatial)
    round_ = math.ceil if signature.values[5] == "True" else math.floor
    sizes = [round_((n + 2 * p[i] - d[i] * (kernel[i] - 1) - 1) / s[i]) + 1 for i, n in enumerate(x[-spatial:])]
    out = (*x[:-spatial], *sizes)
    return float(math.prod(out) * math.prod(kernel)), _operand_bytes(signature) + _bytes(out, signature.dtypes[0]) + _bytes(out, "int64")


def _lists(steps: float, written: int) -> Rule:
    """Optimizer steps over lists of tensors: ``steps`` an element of the first list, ``written`` of the lists changed."""

    def rule(signature: Signature) -> tuple[float, float]:
        lists = [(s, d) for s, d in zip(signature.shapes, signature.dtypes) if s and isinstance(s[0], tuple)]
        elements = [sum(math.prod(s) for s in shapes) for shapes, _ in lists]
        item = _item(lists[0][1])
        same = [n for n in elements if n == elements[0]]  # lists of step counters are not as large as those of parameters
        return steps * elements[0], float(item * (sum(elements) + min(written, max(len(same) - 1, 1)) * elements[0]))

    return rule


# ---------------------------------------------------------------- moves


def _copy(signature: Signature) -> tuple[float, float]:
    """copy_(to, from): ``to`` is written, ``from`` is read, and has its own size where it is broadcast."""
    return 0.0, _bytes(_shape(signature, 0), signature.dtypes[0]) + _bytes(_shape(signature, 1), signature.dtypes[1])


def _fill(signature: Signature) -> tuple[float, float]:
    return 0.0, _bytes(_shape(signature, 0), signature.dtypes[0])


def _index_select(signature: Signature) -> tuple[float, float]:
    """(table, dim, indices): the rows that are picked are read and written."""
    table, indices = _shape(signature, 0), _shape(signature, 2)
    dim = int(_value(signature, 1)) % len(table)
    picked = math.prod(indices) * math.prod(n for i, n in enumerate(table) if i != dim) * _item(signature.dtypes[0])
    return 0.0, 2.0 * picked + _bytes(indices, signature.dtypes[2])


def _embedding(signature: Signature) -> tuple[float, float]:
    table, indices = _shape(signature, 0), _shape(signature, 1)
    picked = math.prod(indices) * table[-1] * _item(signature.dtypes[0])
    return 0.0, 2.0 * picked + _bytes(indices, signature.dtypes[1])


def _embedding_backward(signature: Signature) -> tuple[float, float]:
    """(grad, indices, rows): the gradient of the whole table is written."""
    grad, rows = _shape(signature, 0), int(_value(signature, 2))
    return float(math.prod(grad)), _operand_bytes(signature) + _bytes((rows, grad[-1]), signature.dtypes[0])


def _gather(signature: Signature) -> tuple[float, float]:
    indices = _shape(signature, 2)
    return 0.0, _bytes(indices, signature.dtypes[2]) + 2 * _bytes(indices, signature.dtypes[0])


def _unknown(reason: str) -> Rule:
    def rule(signature: Signature) -> tuple[float, float]:
        raise _Unknown(reason)

    return rule


# ---------------------------------------------------------------- the table

# Arithmetic steps for each result element. Of a formula: its operations written out, x·σ(x) = one function and one product.
PER_ELEMENT = {
    "add": 1, "sub": 1, "rsub": 1, "mul": 1, "neg": 1, "abs": 1, "sign": 1, "square": 1, "pow": 1, "sqrt": 1, "rsqrt": 1,
    "reciprocal": 1, "exp": 1, "expm1": 1, "log": 1, "log1p": 1, "sin": 1, "cos": 1, "tanh": 1, "sigmoid": 1, "erf": 1,
    "relu": 1, "clamp": 2, "clamp_min": 1, "clamp_max": 1, "hardtanh": 2, "threshold": 1, "leaky_relu": 2, "maximum": 1, "minimum": 1,
    "remainder": 1, "floor": 1, "ceil": 1, "round": 1, "where": 1, "masked_fill": 1, "silu": 2, "gelu": 5, "elu": 3, "mish": 4, "hardswish": 4,
    "softplus": 3, "addcmul": 3, "addcdiv": 3, "lerp": 3, "threshold_backward": 1, "sigmoid_backward": 3, "tanh_backward": 3,
    "silu_backward": 6, "gelu_backward": 10, "leaky_relu_backward": 2, "hardtanh_backward": 2, "elu_backward": 3, "hardswish_backward": 4,
    "native_dropout_backward": 2, "mse_loss": 2, "mse_loss_backward": 3, "binary_cross_entropy_with_logits": 6,
}  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or")

VIEWS = frozenset((  # another way to look at the same memory, or memory asked for and not touched
    "as_strided", "view", "_unsafe_view", "_reshape_alias", "transpose", "t", "select", "slice", "narrow", "expand", "permute",
    "squeeze", "unsqueeze", "unflatten", "detach", "alias", "split", "split_with_sizes", "chunk", "unbind", "view_as_real",
    "resolve_conj", "resolve_neg", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "resize",
))  # fmt: skip
WRAPPERS = frozenset((
    "to", "_to_copy", "clone", "contiguous", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "reshape",
    "flatten", "matmul", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "scaled_dot_product_attention", "layer_norm", "batch_norm",
    "_batch_norm_impl_index", "group_norm", "softmax", "log_softmax", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "max_pool2d", "item",
    "randn", "rand", "randint", "stack", "embedding_backward", "select_backward", "slice_backward", "type_as", "outer", "is_nonzero",
))  # fmt: skip

RULES: dict[str, tuple[Kind, Rule]] = {
    **{name: (Kind.PRODUCT, _mm(0)) for name in ("mm", "bmm")},
    **{name: (Kind.PRODUCT, _mm(1)) for name in ("addmm", "baddbmm", "_addmm_activation")},
    "mv": (Kind.PRODUCT, _mv(0)), "dot": (Kind.PRODUCT, _mv(0)), "addmv": (Kind.PRODUCT, _mv(1)),
    **dict.fromkeys(("linear", "mkldnn_linear", "mkldnn::_linear_pointwise", "mkl::_mkl_linear"), (Kind.PRODUCT, _linear)),
    "linear_backward": (Kind.PRODUCT, _linear_backward),
    "convolution": (Kind.PRODUCT, _convolution(3, 4, 5, 6, 8, 7)),
    "_convolution": (Kind.PRODUCT, _convolution(3, 4, 5, 6, 8, 7)),
    "convolution_overrideable": (Kind.PRODUCT, _convolution(3, 4, 5, 6, 8, 7)),
    "mkldnn_convolution": (Kind.PRODUCT, _convolution(4, 3, 5)),
    "mkldnn::_convolution_pointwise": (Kind.PRODUCT, _convolution(4, 3, 5)),
    "cudnn_convolution": (Kind.PRODUCT, _convolution(3, 2, 4)),
    "cudnn_convolution_transpose": (Kind.PRODUCT, _convolution(4, 2, 5, -2, 6, 3)),
    "cudnn_convolution_relu": (Kind.PRODUCT, _convolution(3, 4, 5)),
    "_conv_depthwise2d": (Kind.PRODUCT, _convolution(4, 5, 6)),
    "convolution_backward": (Kind.PRODUCT, _convolution_backward),
    **{f"_scaled_dot_product_{n}": (Kind.PRODUCT, _attention()) for n in (
        "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")},
    **{f"_scaled_dot_product_{n}_backward": (Kind.PRODUCT, _attention_backward()) for n in (
        "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")},
    "_cudnn_attention_forward": (Kind.PRODUCT, _attention()),
    "_flash_attention_forward": (Kind.PRODUCT, _attention(False)), "_efficient_attention_forward": (Kind.PRODUCT, _attention(False)),
    "_flash_attention_backward": (Kind.PRODUCT, _attention_backward(False)),
    "_efficient_attention_backward": (Kind.PRODUCT, _attention_backward(False)),
    **{name: (Kind.LIGHT, _elementwise(steps)) for name, steps in PER_ELEMENT.items()},
    **{name: (Kind.LIGHT, _elementwise(1, "bool")) for name in COMPARISONS},
    "div": (Kind.LIGHT, _division), "true_divide": (Kind.LIGHT, _division),
    "sum": (Kind.LIGHT, _reduction(1)), "mean": (Kind.LIGHT, _reduction(1)), "prod": (Kind.LIGHT, _reduction(1)),
    "amax": (Kind.LIGHT, _reduction(1)), "amin": (Kind.LIGHT, _reduction(1)), "argmax": (Kind.LIGHT, _reduction(1, "int64")),
    "argmin": (Kind.LIGHT, _reduction(1, "int64")), "max": (Kind.LIGHT, _extreme), "min": (Kind.LIGHT, _extreme),
    "any": (Kind.LIGHT, _reduction(1, "bool")), "all": (Kind.LIGHT, _reduction(1, "bool")),
    "linalg_vector_norm": (Kind.LIGHT, _reduction(2, dims_at=2)), "norm": (Kind.LIGHT, _reduction(2, dims_at=2)),
    "var": (Kind.LIGHT, _reduction(4)), "std": (Kind.LIGHT, _reduction(5)), "logsumexp": (Kind.LIGHT, _reduction(4)),
    # max, difference, exp, sum, quotient; their backward: product, sum, difference, product
    "_softmax": (Kind.LIGHT, _like_first(5)), "_log_softmax": (Kind.LIGHT, _like_first(5)),
    "_softmax_backward_data": (Kind.LIGHT, _like_first(4)), "_log_softmax_backward_data": (Kind.LIGHT, _like_first(4)),
    # mean 1, variance 3, normalise 2, scale and shift 2; backward: two sums of 2 each, the input's gradient 7, weight and bias 3
    **{name: (Kind.LIGHT, _like_first(8)) for name in (
        "native_layer_norm", "native_batch_norm", "native_group_norm", "cudnn_batch_norm", "miopen_batch_norm",
        "_native_batch_norm_legit", "_batch_norm_with_update", "_fused_rms_norm")},
    **{name: (Kind.LIGHT, _norm_backward(14)) for name in (
        "native_layer_norm_backward", "native_batch_norm_backward", "native_group_norm_backward", "_fused_rms_norm_backward")},
    "cudnn_batch_norm_backward": (Kind.LIGHT, _like_first(14)), "batch_norm_backward": (Kind.LIGHT, _like_first(14)),
    "max_pool2d_with_indices": (Kind.LIGHT, _pool), "max_pool3d_with_indices": (Kind.LIGHT, _pool),
    # Of Adam: two moments 3 and 4, bias corrections, root, quotient and update 6, decay 2; all but the gradient are written
    "_fused_adamw": (Kind.LIGHT, _lists(15, 3)), "_fused_adam": (Kind.LIGHT, _lists(15, 3)), "_fused_sgd": (Kind.LIGHT, _lists(6, 2)),
    **{f"_foreach_{name}": (Kind.LIGHT, _lists(steps, 1)) for name, steps in (
        ("add", 1), ("sub", 1), ("mul", 1), ("div", 1), ("sqrt", 1), ("lerp", 3), ("addcmul", 3), ("addcdiv", 3), ("neg", 1),
        ("maximum", 1), ("reciprocal", 1), ("pow", 1))},
    "_foreach_norm": (Kind.LIGHT, _lists(2, 0)), "_foreach_zero": (Kind.MOVE, _lists(0, 0)), "_foreach_copy": (Kind.MOVE, _lists(0, 0)),
    "embedding_dense_backward": (Kind.LIGHT, _embedding_backward),
    "copy": (Kind.MOVE, _copy), "fill": (Kind.MOVE, _fill), "zero": (Kind.MOVE, _fill), "uniform": (Kind.MOVE, _fill),
    "normal": (Kind.MOVE, _fill), "bernoulli": (Kind.MOVE, _fill), "random": (Kind.MOVE, _fill),
    "index_select": (Kind.MOVE, _index_select), "embedding": (Kind.MOVE, _embedding), "gather": (Kind.MOVE, _gather),
    **{name: (Kind.MOVE, _unknown("the trace does not tell the types of the tensors in a list")) for name in ("cat",)},
    **{name: (Kind.MOVE, _unknown("the trace does not tell the shapes of its indices")) for name in ("index", "index_put", "_index_put_impl")},
}  # fmt: skip
