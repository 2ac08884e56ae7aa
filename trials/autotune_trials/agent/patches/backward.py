"""``backward``: where the loss is known and the forward region ends."""

from __future__ import annotations

import functools
import threading
from typing import Any

from autotune_trials.agent.patches.base import Patch, PatchSet, untraced


def install(patches: PatchSet, torch: Any, agent: Any) -> None:
    """Patch both ways into the autograd engine.

    ``Tensor.backward`` calls ``autograd.backward``, and a Tensor subclass comes through each of them twice: only
    the outermost call of a thread counts.
    """
    inside = threading.local()

    def make_method(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def backward(
            self: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
        ) -> None:
            if not patch.active or getattr(inside, "backward", False):
                return original(self, gradient, retain_graph, create_graph, inputs=inputs)
            inside.backward = True
            try:
                tensor, gradient = agent.before_backward(self, gradient, create_graph)
                original(tensor, gradient, retain_graph, create_graph, inputs=inputs)
            except BaseException as error:
                agent.errors.on_job_error(error)
                raise
            finally:
                inside.backward = False
            agent.after_backward()
            return None

        return untraced(backward)

    def make_function(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if not patch.active or getattr(inside, "backward", False):
                return original(tensors, grad_tensors, *args, **kwargs)
            create_graph = kwargs.get("create_graph", args[1] if len(args) > 1 else False)
            inside.backward = True
            try:
                tensors, grad_tensors = agent.before_backward(tensors, grad_tensors, create_graph)
                original(tensors, grad_tensors, *args, **kwargs)
            except BaseException as error:
                agent.errors.on_job_error(error)
                raise
            finally:
                inside.backward = False
            agent.after_backward()
            return None

        return untraced(backward)

    def make_grad(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if patch.active:
                agent.own_gradients = True
                if kwargs.get("create_graph") or (len(args) > 4 and args[4]):
                    agent.double_backward = True
            return original(*args, **kwargs)

        return untraced(grad)

    patches.add("Tensor.backward", torch.Tensor, "backward", make_method)
    patches.add("autograd.backward", torch.autograd, "backward", make_function)
    patches.add("autograd.grad", torch.autograd, "grad", make_grad)
