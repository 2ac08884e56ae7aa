"""Which of the values that backward is called on are the loss, if gradients are cached on their way
into the model.

Losses over batches that are too large for one pass (GradCache, the cached losses of
sentence-transformers) run backward in two parts:

    model(x₁) model(x₂) … without gradients ─▶ outputs, detached ─▶ loss.backward()     ends at the outputs, whose .grad is kept
    model(x₁) ─▶ dot(output, its .grad).backward(), model(x₂) ─▶ …                      continues from there: the value is meaningless

or the first part is done piece by piece inside the loss function, and the job gets a single
detached number, their sum, whose backward does the second part from a hook. That number stands for
everything differentiated before it.

An ordinary job's graphs are inspected only in its first iterations; those of a job that caches
gradients, in every iteration.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap.log import write_exception
from autotune_trials.agent.loop.autograd_graph import leaves, listed, nearest

if TYPE_CHECKING:
    from autotune_trials.agent.core.loop_state import LoopState

ITERATIONS, BACKWARDS = 3, 300  # by then a job has shown whether it caches gradients
TOP_NODES = 8  # nodes at the top of a graph that include the product with a kept gradient
PRODUCTS = ("DotBackward", "MulBackward")
FACTORS = ("_saved_self", "_saved_other", "_saved_tensor")


class Value(enum.Enum):
    """What kind of value backward is called on."""

    LOSS = "a loss, or a part of it"
    CARRIED = "a product with gradients of an earlier part: no loss"
    TOTAL = "the sum of what was differentiated before it"


class CachedGradients:
    """Classifies the value of every backward call of the job."""

    def __init__(self, torch: Any, state: LoopState, parameters: Callable[[], list[Any]]) -> None:
        """``parameters``: returns the trained parameters."""
        self._torch, self._state, self._parameters = torch, state, parameters
        # a backward of the running iteration ended in tensors other than parameters
        self.under_way = False
        self._ends: list[Any] = []  # such tensors, while backward runs
        # gradients left in those tensors; the job may keep only these
        self._gradients: list[weakref.ref[Any]] = []

    def after_backward(self) -> None:
        if self._ends:
            # a Tensor subclass may refuse this (torch's ExpandedWeight)
            with self._torch._C.DisableTorchFunctionSubclass():
                self._gradients += [
                    weakref.ref(leaf.grad) for leaf in self._ends if leaf.grad is not None
                ]
            self._ends = []

    def end_iteration(self) -> None:
        self.under_way = False
        self._gradients = []

    def judge(self, tensors: Any, gradients: Any) -> Value:
        """Classify ``tensors``, which backward is called on with ``gradients`` or None."""
        state = self._state
        if not state.caches_gradients and (
            state.iterations >= ITERATIONS or state.backwards >= BACKWARDS
        ):
            return Value.LOSS
        try:
            value = self._judged(tensors, gradients)
        except Exception:  # the graph that autograd exposes is not a stable API
            write_exception("looking for cached gradients")
            return Value.LOSS
        state.caches_gradients = state.caches_gradients or value is not Value.LOSS
        return value

    def _judged(self, tensors: Any, gradients: Any) -> Value:
        state = self._state
        roots, given = listed(tensors), listed(gradients)
        kept = {_storage(gradient) for ref in self._gradients if (gradient := ref()) is not None}
        if kept and (
            any(_storage(g) in kept for g in given if g is not None)
            or any(_multiplies(root.grad_fn, kept) for root in roots)
        ):
            return Value.CARRIED
        ends = leaves(roots)
        parameters = {id(p) for p in self._parameters()}
        others = [
            leaf
            for leaf in ends
            if id(leaf) not in parameters and not isinstance(leaf, self._torch.nn.Parameter)
        ]
        if (
            self.under_way
            and others
            and len(others) == len(ends)
            and all(leaf.numel() == 1 for leaf in others)
        ):
            return Value.TOTAL
        if state.iterations:  # by now the optimizers are known
            state.other_gradients = state.other_gradients or bool(others)
        self._ends, self.under_way = others, self.under_way or bool(others)
        return Value.LOSS


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _multiplies(root: Any, storages: set[int]) -> bool:
    """Whether a product near the top of the graph has a factor in one of ``storages``."""
    for node in nearest(root, TOP_NODES):
        if node.name().startswith(PRODUCTS):
            factors = [getattr(node, name, None) for name in FACTORS]
            if any(_storage(factor) in storages for factor in factors if factor is not None):
                return True
    return False
