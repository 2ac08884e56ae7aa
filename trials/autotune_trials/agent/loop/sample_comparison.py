"""Whether a loss compares the samples of a batch with each other, read from its autograd graph.

Contrastive losses multiply all samples of a batch with all others (CLIP, SimCLR, in-batch
negatives), cross-correlation losses sum a product over the batch (Barlow Twins), metric losses take
all distances. For these the batch size is part of the objective: another batch size trains another
loss. In the graph they appear as one of:

    activations (B, d)  @  activations (d, B)      the product of a batch with a batch
    activations (d, B)  @  activations (B, d)      a product summed over the batch
    cdist, pdist of activations (B, d)

Weights made of parameters alone (low-rank adapters) are not activations. Comparisons written with
broadcasting are not detected.
"""

from __future__ import annotations

import sys
from typing import Any

from autotune_trials.agent.bootstrap.log import write_exception
from autotune_trials.agent.loop.autograd_graph import listed, nodes

PARAMETER_NODES = 32  # most graph nodes of a matrix made of parameters alone
# -> index of the input that is the left factor
PRODUCTS = {"MmBackward0": 0, "AddmmBackward0": 1, "BmmBackward0": 0}
DISTANCES = ("CdistBackward0", "EuclideanDistBackward0")
LOOKUPS = ("Embedding", "Index", "Gather", "Take")  # in a parameter, chosen by the data


def comparison(losses: Any, batch: int) -> str:
    """How ``losses`` (one tensor or several) compare the ``batch`` samples of their batch, in
    words; "" if no comparison is found. A graph that cannot be read may hold one.
    """
    if batch < 2:
        return ""
    try:
        return _search([loss.grad_fn for loss in listed(losses)], batch)
    except Exception as error:  # the graph that autograd exposes is not a stable API
        write_exception("looking through the loss")
        return f"perhaps: its autograd graph cannot be read, {type(error).__name__}"


def _search(outputs: list[Any], batch: int) -> str:
    return next((found for node in nodes(outputs) if (found := _comparison_at(node, batch))), "")


def _comparison_at(node: Any, batch: int) -> str:
    name = node.name()
    if name == "PdistBackward0":
        rows = _shape(node, 0)[:1]
        return f"the distances between its {batch} samples" if rows and rows[0] % batch == 0 else ""
    if name not in PRODUCTS and name not in DISTANCES:
        return ""
    at = PRODUCTS.get(name, 0)
    left, right = _matrix(node, at), _matrix(node, at + 1)
    if (
        not left
        or not right
        or any(_of_parameters(node.next_functions[i][0]) for i in (at, at + 1))
    ):
        return ""
    if name in DISTANCES:
        return (
            f"the distances between its {batch} samples"
            if _holds(left[0], batch) and _holds(right[0], batch)
            else ""
        )
    if left[1] == batch and left[0] != batch:
        return f"a product summed over its {batch} samples"
    if _holds(left[0], batch) and _holds(right[1], batch):
        return f"a product of all its samples with each other, {left[0]} x {right[1]}"
    return ""


def _holds(rows: int, batch: int) -> bool:
    """Whether there is one row, or several, per sample."""
    return rows >= batch and rows % batch == 0


def _matrix(node: Any, which: int) -> tuple[int, ...]:
    """Shape of an input as a matrix; () if it is not one or has no gradient. einsum makes batches
    of one matrix.
    """
    shape = _shape(node, which)
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    return shape if len(shape) == 2 else ()


def _shape(node: Any, which: int) -> tuple[int, ...]:
    if which >= len(node.next_functions):
        return ()
    following, output = node.next_functions[which]
    described = getattr(following, "_input_metadata", None)
    return tuple(described[output].shape) if described and output < len(described) else ()


def _of_parameters(node: Any) -> bool:
    """Whether ``node`` is made of parameters alone: a small graph without any data. A tensor at
    which gradients are cached holds outputs of the model.
    """
    parameter = sys.modules["torch"].nn.Parameter
    pending: list[Any] = [node]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if (
            node is None
            or len(seen) > PARAMETER_NODES
            or any(word in node.name() for word in LOOKUPS)
        ):
            return False
        if not isinstance(getattr(node, "variable", None), (parameter, type(None))):
            return False
        if node not in seen:
            seen.add(node)
            pending += [following for following, _ in node.next_functions]
    return True
