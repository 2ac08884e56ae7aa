"""Walks autograd graphs. The graph that autograd exposes is not a stable API: callers must handle
any exception."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

REFUSED = {"BinaryCrossEntropyBackward0": "binary_cross_entropy"}
NODES = 20_000  # visited in one graph, at most; each takes about 1 µs
SCALE = "autotune_scale"  # key of a node's metadata: what a GradScaler multiplied with there
NEAR = 64  # nodes from a loss, within which it was scaled


def listed(tensors: Any) -> list[Any]:
    """``tensors``, one or several, as a list."""
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def nodes(outputs: Iterable[Any]) -> Iterator[Any]:
    """The nodes of the graphs that end in ``outputs``, each once, and no more than NODES. ``None``
    entries are skipped.
    """
    pending, seen = list(outputs), set[Any]()
    while pending and len(seen) < NODES:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            pending += [following for following, _ in node.next_functions]


def nearest(output: Any, most: int) -> Iterator[Any]:
    """The nodes of the graph that ends in ``output``, nearest first, and no more than ``most``; a
    node that is used several times may come again.
    """
    pending, seen = deque([output]), 0
    while pending and seen < most:
        node = pending.popleft()
        if node is not None:
            seen += 1
            yield node
            pending += [following for following, _ in node.next_functions]


def unsafe_to_autocast(losses: Any) -> str:
    """What ``losses`` (one tensor or several) compute that autocast refuses on CUDA, by its name in
    torch.nn.functional; "" if nothing was found."""
    try:
        names = {node.name() for node in nodes(loss.grad_fn for loss in listed(losses))}
    except Exception:  # see the module
        return ""
    return next((word for name, word in REFUSED.items() if name in names), "")


def leaves(roots: Iterable[Any]) -> list[Any]:
    """The tensors at which the graphs of ``roots`` begin: parameters, and anything else that
    collects a gradient."""
    roots = list(roots)
    found = {id(root): root for root in roots if root.grad_fn is None}
    for node in nodes(root.grad_fn for root in roots):
        leaf = getattr(node, "variable", None)  # of AccumulateGrad
        if leaf is not None:
            found[id(leaf)] = leaf
    return list(found.values())


def scale_near(loss: Any) -> Any:
    """The scale of what ``loss`` was made from last: of a sum, a share or a mean of scaled losses.
    None if nothing was scaled.
    """
    try:
        for node in nearest(loss.grad_fn, NEAR):
            if SCALE in node.metadata:
                return node.metadata[SCALE]
    except Exception:  # see the module
        pass
    return None
