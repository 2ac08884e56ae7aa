"""Matrix products, convolutions and attention: 2·m·n·k FLOPs, as products of their sizes."""

from __future__ import annotations

import math

from autotune.explain.operands import Rule, Unknown, bytes_of, each, shape_of, value_of
from autotune.explain.trace import Shape, Signature


def mm(first: int) -> Rule:
    """``mm``, ``bmm``, ``addmm``, ``baddbmm``: the matrices are at ``first`` and ``first + 1``."""

    def rule(signature: Signature) -> tuple[float, float]:
        a, b = shape_of(signature, first), shape_of(signature, first + 1)
        result = (*a[:-1], b[-1])
        return 2.0 * math.prod(a) * b[-1], bytes_of(result, signature.dtypes[first])

    return rule


def mv(first: int) -> Rule:
    def rule(signature: Signature) -> tuple[float, float]:
        a = shape_of(signature, first)
        return 2.0 * math.prod(a), bytes_of(a[:-1], signature.dtypes[first])

    return rule


def linear(signature: Signature) -> tuple[float, float]:
    x, weight = shape_of(signature, 0), shape_of(signature, 1)
    result = (*x[:-1], weight[0])
    return 2.0 * math.prod(x) * weight[0], bytes_of(result, signature.dtypes[0])


def linear_backward(signature: Signature) -> tuple[float, float]:
    """(input, grad_output, weight, mask)"""
    x, weight, mask = shape_of(signature, 0), shape_of(signature, 2), value_of(signature, 3)
    results = [x, weight, weight[:1]]
    written = sum(bytes_of(s, signature.dtypes[0]) for s, wanted in zip(results, mask) if wanted)
    return 2.0 * math.prod(x) * weight[0] * sum(map(bool, mask[:2])), written


def convolution(
    stride: int,
    padding: int,
    dilation: int = -1,
    transposed: int = -1,
    groups: int = -1,
    output_padding: int = -1,
) -> Rule:
    """A convolution's forward; the positions of its arguments differ between backends."""

    def rule(signature: Signature) -> tuple[float, float]:
        x, weight = shape_of(signature, 0), shape_of(signature, 1)
        is_transposed = transposed == -2 or (
            transposed >= 0 and bool(value_of(signature, transposed))
        )
        spatial = len(x) - 2
        s, p, d = (
            each(value_of(signature, at) if at >= 0 else 1, spatial)
            for at in (stride, padding, dilation)
        )
        kernel = weight[2:]
        if is_transposed:
            extra = each(value_of(signature, output_padding), spatial)
            sizes = [
                (n - 1) * s[i] - 2 * p[i] + d[i] * (kernel[i] - 1) + extra[i] + 1
                for i, n in enumerate(x[2:])
            ]
            result = (x[0], weight[1] * int(value_of(signature, groups)), *sizes)
            flops = 2.0 * x[0] * math.prod(x[2:]) * math.prod(weight)
        else:
            sizes = [
                (n + 2 * p[i] - d[i] * (kernel[i] - 1) - 1) // s[i] + 1 for i, n in enumerate(x[2:])
            ]
            result = (x[0], weight[0], *sizes)
            flops = 2.0 * x[0] * math.prod(sizes) * math.prod(weight)
        return flops, bytes_of(result, signature.dtypes[0])

    return rule


def convolution_backward(mask: int, transposed: int = -1) -> Rule:
    """(grad_output, input, weight, …); ``mask``: position of which gradients are wanted."""

    def rule(signature: Signature) -> tuple[float, float]:
        grad, x, weight = (shape_of(signature, i) for i in range(3))
        # the side each of whose positions is multiplied with the whole kernel
        over = x if transposed >= 0 and value_of(signature, transposed) else grad
        wanted = value_of(signature, mask)
        one = 2.0 * over[0] * math.prod(over[2:]) * math.prod(weight)
        results = [x, weight, (grad[1],)]
        written = sum(bytes_of(s, signature.dtypes[1]) for s, w in zip(results, wanted) if w)
        return one * sum(map(bool, wanted[:2])), written

    return rule


def attention(heads_second: bool = True) -> Rule:
    """softmax(q·kᵀ)·v with tensors [batch, heads, sequence, features], or heads after the sequence."""

    def rule(signature: Signature) -> tuple[float, float]:
        q, k, v = (shape_of(signature, i) for i in range(3))
        _need_one_length(signature)
        batch, heads, queries, keys = _attention_sizes(q, k, heads_second)
        pairs = 2.0 * batch * heads * queries * keys
        # the result and its logsumexp
        written = bytes_of((*q[:-1], v[-1]), signature.dtypes[0]) + 4.0 * batch * heads * queries
        return pairs * (q[-1] + v[-1]), written

    return rule


def attention_backward(heads_second: bool = True) -> Rule:
    """(grad, q, k, v, …): q·kᵀ computed again, and the gradient's four products."""

    def rule(signature: Signature) -> tuple[float, float]:
        _, q, k, v = (shape_of(signature, i) for i in range(4))
        _need_one_length(signature)
        batch, heads, queries, keys = _attention_sizes(q, k, heads_second)
        pairs = 2.0 * batch * heads * queries * keys
        written = sum(bytes_of(s, signature.dtypes[1]) for s in (q, k, v))
        return pairs * (3 * q[-1] + 2 * v[-1]), written

    return rule


def _need_one_length(signature: Signature) -> None:
    """Check that all sequences are of one length: others come with where each begins.

    Raises:
        Unknown: they are not.
    """
    if any(len(shape) == 1 and dtype == "int32" for shape, dtype in signature.tensors):
        raise Unknown("the trace does not show the lengths of the sequences")


def _attention_sizes(q: Shape, k: Shape, heads_second: bool) -> tuple[int, int, int, int]:
    heads, sequence = (1, 2) if heads_second else (2, 1)
    return q[0], q[heads], q[sequence], k[sequence]
