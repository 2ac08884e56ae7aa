"""FLOPs and bytes of one call of an operator, from the shapes and types in a trace.

    matrix products     2·m·n·k, forward and backward; convolutions and attention are counted as
                        the products they amount to. The bias of addmm, linear and convolutions is
                        not counted, nor are masks. :mod:`torch.utils.flop_counter` counts the same
                        way, and a test keeps the two in agreement. (The formulas are repeated here
                        because the tuner does not load torch.)
    elementwise         1 per arithmetic step and result element; a function such as exp or tanh is
                        one step (PER_ELEMENT)
    reductions          1 per element read
    bytes               each operand read once and each result written once, in their own types: the
                        least memory traffic if nothing is read twice. An operand changed in place
                        counts as both.

An operator that delegates its work (``aten::linear`` calls ``aten::addmm``) is counted where the
work is done, and only there. Figures that are not known here stay None, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

from autotune.explain import passes, products
from autotune.explain.operands import Rule, Unknown, base_name, operand_bytes
from autotune.explain.records import Operator
from autotune.explain.trace import Signature


class Kind(IntEnum):
    """What an operator does; where one operator calls another, the higher kind is counted."""

    MOVE = 1  # copies, fills, gathers: no arithmetic
    LIGHT = 2  # elementwise, reductions, norms, optimizer steps
    PRODUCT = 3  # matrix products, convolutions, attention: the model FLOPs


@dataclass(frozen=True)
class Work:
    flops: float | None = None
    nbytes: float | None = None
    why: str = ""  # why a figure is None


@cache
def kind(name: str) -> Kind | None:
    """Kind of work an operator does itself; None if it is not known here."""
    found = RULES.get(base_name(name))
    return found[0] if found else None


def work(signature: Signature, list_dtype: str = "") -> Work:
    """FLOPs and bytes of one call.

    Args:
        list_dtype: type of the tensors in lists, which a trace does not record; "" if unknown.
    """
    if base_name(signature.name) in VIEWS:
        return Work(0.0, 0.0)
    found = RULES.get(base_name(signature.name))
    if found is None:
        return Work(why=f"the work that {signature.name} does is unknown")
    if signature.sparse:
        return Work(why=SPARSE)
    if list_dtype and "list" in signature.dtypes:
        dtypes = [list_dtype if dtype == "list" else dtype for dtype in signature.dtypes]
        for index, shape in enumerate(signature.shapes):
            if shape == () and signature.dtypes[index] == "list":  # an empty list has no tensors
                dtypes[index] = ""
        signature = replace(signature, dtypes=tuple(dtypes))
    try:
        flops, nbytes = found[1](signature)
        nbytes += 0.0 if found[0] is Kind.MOVE else operand_bytes(signature)
    except Unknown as error:
        return Work(why=str(error))
    except (IndexError, KeyError, TypeError, ValueError, SyntaxError):
        return Work(why=f"the trace does not have the shapes and types of {signature.name}")
    return Work(flops, nbytes)


def model_flops(operators: Sequence[Operator], steps: int) -> float | None:
    """FLOPs of the model per step, forward and backward: matrix products, convolutions, attention.

    Averaged over ``steps`` profiled iterations. Recomputed work (checkpointing) counts again. None
    if no such operator was counted, or some that take long cannot be.
    """
    uncounted = sum(
        r.share
        for r in operators
        if r.flops is None
        and (
            _UNCOUNTED.search(r.name)
            or (SPARSE in r.why and kind(r.name) is Kind.PRODUCT)
            or PRODUCTS_INSIDE in r.why
        )
    )
    if uncounted > UNCOUNTED_SHARE:
        return None
    counted = [
        row.flops * row.calls
        for row in operators
        if row.flops is not None and kind(row.name) is Kind.PRODUCT
    ]
    return sum(counted) / steps if counted and steps > 0 else None


# Inductor names its pointwise and reducing kernels after the operators around them.
_NO_PRODUCT = r"^(?!triton_(?:poi|red|per)_).*"
# products whose sizes a trace does not show (recurrent layers, sequences of different lengths, kernels
# made by torch.compile or by other libraries), or that no rule counts
_UNCOUNTED = re.compile(
    rf"{_NO_PRODUCT}(?:rnn|lstm|gru|triton_(?:tem|mm)|flash_attn|(?:flash|efficient|cudnn)_attention"
    r"|(?:scaled|grouped|int)_mm)",
    re.IGNORECASE,
)
# kernels of cuBLAS, cuDNN, CUTLASS, flash attention and Triton templates
PRODUCT_KERNEL = re.compile(
    rf"{_NO_PRODUCT}(?:gemm|nvjet|xmma|cutlass|flash_|fmha|convolve|winograd|triton_(?:tem|mm))",
    re.IGNORECASE,
)
# of a replayed CUDA graph, for example, which has no operators
PRODUCTS_INSIDE = "its own kernels compute products, whose sizes the trace does not show"
SPARSE = "an operand is sparse, and the trace does not record how many elements it has"
UNCOUNTED_SHARE = 0.1  # of the operators' time


def hands_on(name: str) -> bool:
    """Whether an operator only calls others, so that its own time is dispatch and bookkeeping."""
    return (
        base_name(name) in WRAPPERS
        or name.startswith(("autograd::engine::", "torch::autograd::"))
        or name.endswith(("Backward0", "Backward1"))
    )


# Arithmetic steps per result element. Formulas count each of their operations: x·σ(x) is one
# function and one product.
PER_ELEMENT = {
    name: steps
    for steps, names in {
        1: """
            add sub rsub mul neg abs sign square pow sqrt rsqrt reciprocal exp expm1 log log1p sin
            cos tanh sigmoid erf relu clamp_min clamp_max threshold maximum minimum remainder floor
            ceil round where masked_fill threshold_backward
        """,
        2: """
            clamp hardtanh leaky_relu silu leaky_relu_backward hardtanh_backward
            native_dropout_backward mse_loss
        """,
        3: """
            elu softplus addcmul addcdiv lerp sigmoid_backward tanh_backward elu_backward
            mse_loss_backward
        """,
        4: "mish hardswish hardswish_backward",
        5: "gelu",
        6: "silu_backward binary_cross_entropy_with_logits",
        10: "gelu_backward",
    }.items()
    for name in names.split()
}
COMPARISONS = "eq ne lt le gt ge isnan isinf isfinite logical_not logical_and logical_or".split()

# Views of existing memory, and memory that is allocated but not touched
VIEWS = frozenset(
    """
        as_strided view _unsafe_view _reshape_alias transpose t select slice narrow expand permute
        squeeze unsqueeze unflatten detach alias split split_with_sizes chunk unbind view_as_real
        resolve_conj resolve_neg lift_fresh empty empty_like empty_strided new_empty resize
    """.split()
)
WRAPPERS = frozenset(
    """
        to _to_copy clone contiguous zeros ones full zeros_like ones_like full_like new_zeros
        reshape flatten matmul einsum conv1d conv2d conv3d conv_transpose2d thnn_conv2d slow_conv3d
        scaled_dot_product_attention layer_norm batch_norm _batch_norm_impl_index group_norm softmax
        log_softmax cross_entropy_loss nll_loss nll_loss_nd max_pool2d item randn rand randint stack
        embedding_backward select_backward slice_backward type_as outer is_nonzero
    """.split()
)

_ATTENTION = "flash_attention_for_cpu flash_attention efficient_attention cudnn_attention".split()
_OF_LISTS = {"lerp": 3, "addcmul": 3, "addcdiv": 3} | dict.fromkeys(
    "add sub mul div sqrt neg maximum reciprocal pow".split(), 1
)
_NO_TYPES = passes.unknown("the trace does not record the types of the tensors in a list")
_NO_SHAPES = passes.unknown("the trace does not record the shapes of its indices")

# kind -> (rule for FLOPs and bytes, names of the operators)
_BY_KIND: dict[Kind, Sequence[tuple[Rule, str]]] = {
    Kind.PRODUCT: (
        (products.mm(0), "mm bmm"),
        (products.mm(1), "addmm baddbmm _addmm_activation"),
        (products.mv(0), "mv dot"),
        (products.mv(1), "addmv"),
        (products.linear, "linear mkldnn_linear mkldnn::_linear_pointwise mkl::_mkl_linear"),
        (products.linear_backward, "linear_backward"),
        (
            products.convolution(3, 4, 5, 6, 8, 7),
            "convolution _convolution convolution_overrideable",
        ),
        (products.convolution(4, 3, 5), "mkldnn_convolution mkldnn::_convolution_pointwise"),
        (products.convolution(3, 2, 4), "cudnn_convolution"),
        (products.convolution(4, 2, 5, -2, 6, 3), "cudnn_convolution_transpose"),
        (products.convolution(3, 4, 5), "cudnn_convolution_relu"),
        (products.convolution(4, 5, 6), "_conv_depthwise2d"),
        # outside oneDNN and cuDNN, e.g. in float64
        (products.convolution(4, 5), "_slow_conv2d_forward slow_conv3d_forward"),
        (products.convolution(4, 5, 6), "slow_conv_dilated2d slow_conv_dilated3d"),
        (products.convolution_backward(10, 7), "convolution_backward"),
        (products.convolution_backward(6), "_slow_conv2d_backward"),
        (products.attention(), "_cudnn_attention_forward"),
        (products.attention_backward(), "_cudnn_attention_backward"),
        (products.attention(False), "_flash_attention_forward _efficient_attention_forward"),
        (
            products.attention_backward(False),
            "_flash_attention_backward _efficient_attention_backward",
        ),
    ),
    Kind.LIGHT: (
        (passes.division, "div true_divide"),
        (passes.reduction(1), "sum mean prod amax amin"),
        (passes.reduction(1, "int64"), "argmax argmin"),
        (passes.reduction(1, "bool"), "any all"),
        (passes.extreme, "max min"),
        (passes.reduction(2, dims_at=2), "linalg_vector_norm norm"),
        (passes.reduction(4), "var logsumexp"),
        (passes.reduction(5), "std"),
        # max, difference, exp, sum, quotient; their backward: product, sum, difference, product
        (passes.like(5), "_softmax _log_softmax"),
        (passes.like(4), "_softmax_backward_data _log_softmax_backward_data"),
        # mean 1, variance 3, normalize 2, scale and shift 2; backward: two sums of 2 each, the
        # input's gradient 7, weight and bias 3
        (
            passes.like(8),
            "native_layer_norm native_batch_norm native_group_norm cudnn_batch_norm "
            "miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update _fused_rms_norm",
        ),
        (
            passes.like(14, 1),
            "native_layer_norm_backward native_batch_norm_backward native_group_norm_backward "
            "_fused_rms_norm_backward",
        ),
        (passes.like(14), "cudnn_batch_norm_backward batch_norm_backward"),
        (passes.pool, "max_pool2d_with_indices max_pool3d_with_indices"),
        # Adam: two moments 3 and 4; bias corrections, root, quotient and update 6; decay 2. All
        # lists but the gradients are written.
        (passes.lists(15, 3), "_fused_adamw _fused_adam"),
        (passes.lists(6, 2), "_fused_sgd"),
        (passes.lists(2, 0), "_foreach_norm"),
        (passes.embedding_backward, "embedding_dense_backward"),
    ),
    Kind.MOVE: (
        (passes.whole_operands, "_foreach_zero _foreach_copy"),
        (passes.copy, "copy"),
        (passes.fill, "fill zero uniform normal bernoulli random"),
        (passes.index_select, "index_select"),
        (passes.embedding, "embedding"),
        (passes.gather, "gather"),
        (_NO_TYPES, "cat"),
        (_NO_SHAPES, "index index_put _index_put_impl"),
    ),
}
RULES: dict[str, tuple[Kind, Rule]] = {
    **{
        name: (each, rule)
        for each, rows in _BY_KIND.items()
        for rule, names in rows
        for name in names.split()
    },
    **{f"_scaled_dot_product_{n}": (Kind.PRODUCT, products.attention()) for n in _ATTENTION},
    **{
        f"_scaled_dot_product_{n}_backward": (Kind.PRODUCT, products.attention_backward())
        for n in _ATTENTION
    },
    **{name: (Kind.LIGHT, passes.elementwise(steps)) for name, steps in PER_ELEMENT.items()},
    **{name: (Kind.LIGHT, passes.elementwise(1, "bool")) for name in COMPARISONS},
    **{f"_foreach_{n}": (Kind.LIGHT, passes.lists(steps, 1)) for n, steps in _OF_LISTS.items()},
}
