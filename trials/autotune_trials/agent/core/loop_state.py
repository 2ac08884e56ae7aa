"""Where the job is in its training loop."""

from __future__ import annotations

import enum
from threading import get_ident


class Ending(enum.Enum):
    """What ends an iteration."""

    STEP = "the step of an optimizer of torch.optim"
    UPDATE = "the job goes on after it has updated its parameters itself"
    MARK = "autotune.step() in the job"


class LoopState:
    """Written by the training loop's events and the classes named below; any code may read it."""

    __slots__ = """
        stopped iterations backwards backwards_at_first ends_with in_backward in_step inside_entry
        training_called frozen closure_calls capturing captures functional seen_gradless
        caches_gradients fetching thread took_gradients other_gradients
    """.split()

    def __init__(self) -> None:
        self.stopped = False  # the agent has stepped aside
        self.iterations = 0  # completed
        self.thread = get_ident()  # the thread that trains: the latest iteration ended in it
        self.backwards = 0
        self.backwards_at_first = 0  # ``backwards`` when the first iteration ended
        self.ends_with = Ending.STEP
        self.in_backward = False
        self.in_step = False  # torch is calling the optimizer hooks, or the step between them
        self.inside_entry = False  # an entry module computes (EntryCall)
        self.training_called = False  # an entry module was called in training, in this iteration
        # the latest module call was in training mode, but all trained parameters were frozen: an
        # evaluation that takes gradients
        self.frozen = False
        self.closure_calls = 0  # in the running step
        # the job captures a CUDA graph: nothing may be timed, waited for or copied
        self.capturing = False
        self.captures = 0  # of CUDA graphs, completed
        self.functional = False  # the job takes gradients with torch.func
        # a module in training mode was called without gradients (ModuleDiscovery)
        self.seen_gradless = False
        # id of the thread that fetches a batch (SwitchableIterator); workers forked by it inherit it
        self.fetching = 0
        self.took_gradients = False  # by torch.autograd.grad, since the latest training call
        self.caches_gradients = False  # backward runs in two parts (CachedGradients)
        # backward leaves gradients in tensors that no optimizer has, such as the inputs
        self.other_gradients = False

    @property
    def aside(self) -> bool:
        """Whether this thread neither trains nor takes part in a backward, which on CUDA has threads
        of its own. Known once an iteration has ended."""
        if not self.iterations or get_ident() == self.thread:
            return False
        import torch

        return bool(torch._C._current_graph_task_id() == -1)
