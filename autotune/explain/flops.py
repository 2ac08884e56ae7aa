"""FLOPs and bytes of one call of an operator, from the shapes and types in a trace.

    matrix products     2·m·n·k, forward and backward; convolutions and attention alike, as products of their sizes. The bias
                        of addmm, linear and convolutions is not counted, nor are masks:
                            :mod:`torch.utils.flop_counter` counts
                        so, and a test holds the two together. (The formulas stand here since the
                        tuner does not load torch.)
    elementwise         1 for each arithmetic step and result element; a function such as exp or tanh is one step (PER_ELEMENT)
    reductions          1 for each element read
    bytes               each operand read once and each result written once, in their own types: what memory must move if
                        nothing is read twice. What an operator changes in place is both.

An operator that hands its work on (``aten::linear`` calls ``aten::addmm``) is counted where the
work is done, and only there. What is not known here stays None, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from autotune.explain import passes, products
from autotune.explain.operands import Rule, Unknown, base_name
from autotune.explain.records import Operator
from autotune.explain.trace import Signature


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


def kind(name: str) -> Kind | None:
    """What kind of work an operator does itself; None: none that is known here."""
    found = RULES.get(base_name(name))
    return found[0] if found else None


def work(signature: Signature, list_dtype: str = "") -> Work:
    """FLOPs and bytes of one call.

    Args:
        list_dtype: type of the tensors in lists, which a trace does not tell; "" if it is not
            known.
    """
    if base_name(signature.name) in VIEWS:
        return Work(0.0, 0.0)
    found = RULES.get(base_name(signature.name))
    if found is None:
        return Work(why=f"how much {signature.name} computes is not known here")
    if list_dtype and "list" in signature.dtypes:
        signature = Signature(
            signature.name,
            signature.shapes,
            tuple(list_dtype if d == "list" else d for d in signature.dtypes),
            signature.values,
        )
    try:
        flops, nbytes = found[1](signature)
    except Unknown as error:
        return Work(why=str(error))
    except (IndexError, KeyError, TypeError, ValueError, SyntaxError):
        return Work(why=f"the trace does not have the shapes and types of {signature.name}")
    return Work(flops, nbytes)


def model_flops(operators: Sequence[Operator], steps: int) -> float | None:
    """FLOPs of the model a step, forward and backward: matrix products, convolutions, attention
    over ``steps`` profiled
    iterations. What is computed again (checkpointing) counts again. None: nothing of the kind was
    counted.
    """
    counted = [
        row.flops * row.calls
        for row in operators
        if row.flops is not None and kind(row.name) is Kind.PRODUCT
    ]
    return sum(counted) / steps if counted and steps > 0 else None


def hands_on(name: str) -> bool:
    """An operator that only calls others: what it takes itself is dispatch and bookkeeping."""
    return (
        base_name(name) in WRAPPERS
        or name.startswith(("autograd::engine::", "torch::autograd::"))
        or name.endswith(("Backward0", "Backward1"))
    )


# Arithmetic steps for each result element. Of a formula: its operations written out, x·σ(x) = one
# function and one product.
PER_ELEMENT = {
    "add": 1,
    "sub": 1,
    "rsub": 1,
    "mul": 1,
    "neg": 1,
    "abs": 1,
    "sign": 1,
    "square": 1,
    "pow": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "reciprocal": 1,
    "exp": 1,
    "expm1": 1,
    "log": 1,
    "log1p": 1,
    "sin": 1,
    "cos": 1,
    "tanh": 1,
    "sigmoid": 1,
    "erf": 1,
    "relu": 1,
    "clamp": 2,
    "clamp_min": 1,
    "clamp_max": 1,
    "hardtanh": 2,
    "threshold": 1,
    "leaky_relu": 2,
    "maximum": 1,
    "minimum": 1,
    "remainder": 1,
    "floor": 1,
    "ceil": 1,
    "round": 1,
    "where": 1,
    "masked_fill": 1,
    "silu": 2,
    "gelu": 5,
    "elu": 3,
    "mish": 4,
    "hardswish": 4,
    "softplus": 3,
    "addcmul": 3,
    "addcdiv": 3,
    "lerp": 3,
    "threshold_backward": 1,
    "sigmoid_backward": 3,
    "tanh_backward": 3,
    "silu_backward": 6,
    "gelu_backward": 10,
    "leaky_relu_backward": 2,
    "hardtanh_backward": 2,
    "elu_backward": 3,
    "hardswish_backward": 4,
    "native_dropout_backward": 2,
    "mse_loss": 2,
    "mse_loss_backward": 3,
    "binary_cross_entropy_with_logits": 6,
}
COMPARISONS = (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "logical_and",
    "logical_or",
)

VIEWS = frozenset(
    (  # another way to look at the same memory, or memory asked for and not touched
        "as_strided",
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "transpose",
        "t",
        "select",
        "slice",
        "narrow",
        "expand",
        "permute",
        "squeeze",
        "unsqueeze",
        "unflatten",
        "detach",
        "alias",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "view_as_real",
        "resolve_conj",
        "resolve_neg",
        "lift_fresh",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "resize",
    )
)
WRAPPERS = frozenset(
    (
        "to",
        "_to_copy",
        "clone",
        "contiguous",
        "zeros",
        "ones",
        "full",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "reshape",
        "flatten",
        "matmul",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose2d",
        "scaled_dot_product_attention",
        "layer_norm",
        "batch_norm",
        "_batch_norm_impl_index",
        "group_norm",
        "softmax",
        "log_softmax",
        "cross_entropy_loss",
        "nll_loss",
        "nll_loss_nd",
        "max_pool2d",
        "item",
        "randn",
        "rand",
        "randint",
        "stack",
        "embedding_backward",
        "select_backward",
        "slice_backward",
        "type_as",
        "outer",
        "is_nonzero",
    )
)

RULES: dict[str, tuple[Kind, Rule]] = {
    **{name: (Kind.PRODUCT, products.mm(0)) for name in ("mm", "bmm")},
    **{name: (Kind.PRODUCT, products.mm(1)) for name in ("addmm", "baddbmm", "_addmm_activation")},
    "mv": (Kind.PRODUCT, products.mv(0)),
    "dot": (Kind.PRODUCT, products.mv(0)),
    "addmv": (Kind.PRODUCT, products.mv(1)),
    **dict.fromkeys(
        ("linear", "mkldnn_linear", "mkldnn::_linear_pointwise", "mkl::_mkl_linear"),
        (Kind.PRODUCT, products.linear),
    ),
    "linear_backward": (Kind.PRODUCT, products.linear_backward),
    "convolution": (Kind.PRODUCT, products.convolution(3, 4, 5, 6, 8, 7)),
    "_convolution": (Kind.PRODUCT, products.convolution(3, 4, 5, 6, 8, 7)),
    "convolution_overrideable": (Kind.PRODUCT, products.convolution(3, 4, 5, 6, 8, 7)),
    "mkldnn_convolution": (Kind.PRODUCT, products.convolution(4, 3, 5)),
    "mkldnn::_convolution_pointwise": (Kind.PRODUCT, products.convolution(4, 3, 5)),
    "cudnn_convolution": (Kind.PRODUCT, products.convolution(3, 2, 4)),
    "cudnn_convolution_transpose": (Kind.PRODUCT, products.convolution(4, 2, 5, -2, 6, 3)),
    "cudnn_convolution_relu": (Kind.PRODUCT, products.convolution(3, 4, 5)),
    "_conv_depthwise2d": (Kind.PRODUCT, products.convolution(4, 5, 6)),
    "convolution_backward": (Kind.PRODUCT, products.convolution_backward),
    **{
        f"_scaled_dot_product_{n}": (Kind.PRODUCT, products.attention())
        for n in (
            "flash_attention_for_cpu",
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
        )
    },
    **{
        f"_scaled_dot_product_{n}_backward": (Kind.PRODUCT, products.attention_backward())
        for n in (
            "flash_attention_for_cpu",
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
        )
    },
    "_cudnn_attention_forward": (Kind.PRODUCT, products.attention()),
    "_flash_attention_forward": (Kind.PRODUCT, products.attention(False)),
    "_efficient_attention_forward": (Kind.PRODUCT, products.attention(False)),
    "_flash_attention_backward": (Kind.PRODUCT, products.attention_backward(False)),
    "_efficient_attention_backward": (Kind.PRODUCT, products.attention_backward(False)),
    **{name: (Kind.LIGHT, passes.elementwise(steps)) for name, steps in PER_ELEMENT.items()},
    **{name: (Kind.LIGHT, passes.elementwise(1, "bool")) for name in COMPARISONS},
    "div": (Kind.LIGHT, passes.division),
    "true_divide": (Kind.LIGHT, passes.division),
    "sum": (Kind.LIGHT, passes.reduction(1)),
    "mean": (Kind.LIGHT, passes.reduction(1)),
    "prod": (Kind.LIGHT, passes.reduction(1)),
    "amax": (Kind.LIGHT, passes.reduction(1)),
    "amin": (Kind.LIGHT, passes.reduction(1)),
    "argmax": (Kind.LIGHT, passes.reduction(1, "int64")),
    "argmin": (Kind.LIGHT, passes.reduction(1, "int64")),
    "max": (Kind.LIGHT, passes.extreme),
    "min": (Kind.LIGHT, passes.extreme),
    "any": (Kind.LIGHT, passes.reduction(1, "bool")),
    "all": (Kind.LIGHT, passes.reduction(1, "bool")),
    "linalg_vector_norm": (Kind.LIGHT, passes.reduction(2, dims_at=2)),
    "norm": (Kind.LIGHT, passes.reduction(2, dims_at=2)),
    "var": (Kind.LIGHT, passes.reduction(4)),
    "std": (Kind.LIGHT, passes.reduction(5)),
    "logsumexp": (Kind.LIGHT, passes.reduction(4)),
    # max, difference, exp, sum, quotient; their backward: product, sum, difference, product
    "_softmax": (Kind.LIGHT, passes.like_first(5)),
    "_log_softmax": (Kind.LIGHT, passes.like_first(5)),
    "_softmax_backward_data": (Kind.LIGHT, passes.like_first(4)),
    "_log_softmax_backward_data": (Kind.LIGHT, passes.like_first(4)),
    # mean 1, variance 3, normalise 2, scale and shift 2; backward: two sums of 2 each, the input's
    # gradient 7, weight and bias 3
    **{
        name: (Kind.LIGHT, passes.like_first(8))
        for name in (
            "native_layer_norm",
            "native_batch_norm",
            "native_group_norm",
            "cudnn_batch_norm",
            "miopen_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
            "_fused_rms_norm",
        )
    },
    **{
        name: (Kind.LIGHT, passes.norm_backward(14))
        for name in (
            "native_layer_norm_backward",
            "native_batch_norm_backward",
            "native_group_norm_backward",
            "_fused_rms_norm_backward",
        )
    },
    "cudnn_batch_norm_backward": (Kind.LIGHT, passes.like_first(14)),
    "batch_norm_backward": (Kind.LIGHT, passes.like_first(14)),
    "max_pool2d_with_indices": (Kind.LIGHT, passes.pool),
    "max_pool3d_with_indices": (Kind.LIGHT, passes.pool),
    # Of Adam: two moments 3 and 4, bias corrections, root, quotient and update 6, decay 2; all but
    # the gradient are written
    "_fused_adamw": (Kind.LIGHT, passes.lists(15, 3)),
    "_fused_adam": (Kind.LIGHT, passes.lists(15, 3)),
    "_fused_sgd": (Kind.LIGHT, passes.lists(6, 2)),
    **{
        f"_foreach_{name}": (Kind.LIGHT, passes.lists(steps, 1))
        for name, steps in (
            ("add", 1),
            ("sub", 1),
            ("mul", 1),
            ("div", 1),
            ("sqrt", 1),
            ("lerp", 3),
            ("addcmul", 3),
            ("addcdiv", 3),
            ("neg", 1),
            ("maximum", 1),
            ("reciprocal", 1),
            ("pow", 1),
        )
    },
    "_foreach_norm": (Kind.LIGHT, passes.lists(2, 0)),
    "_foreach_zero": (Kind.MOVE, passes.lists(0, 0)),
    "_foreach_copy": (Kind.MOVE, passes.lists(0, 0)),
    "embedding_dense_backward": (Kind.LIGHT, passes.embedding_backward),
    "copy": (Kind.MOVE, passes.copy),
    "fill": (Kind.MOVE, passes.fill),
    "zero": (Kind.MOVE, passes.fill),
    "uniform": (Kind.MOVE, passes.fill),
    "normal": (Kind.MOVE, passes.fill),
    "bernoulli": (Kind.MOVE, passes.fill),
    "random": (Kind.MOVE, passes.fill),
    "index_select": (Kind.MOVE, passes.index_select),
    "embedding": (Kind.MOVE, passes.embedding),
    "gather": (Kind.MOVE, passes.gather),
    **{
        name: (
            Kind.MOVE,
            passes.unknown("the trace does not tell the types of the tensors in a list"),
        )
        for name in ("cat",)
    },
    **{
        name: (Kind.MOVE, passes.unknown("the trace does not tell the shapes of its indices"))
        for name in ("index", "index_put", "_index_put_impl")
    },
}
