"""``backward``: where the loss is known and the forward region ends."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.base import Patch, PatchSet, untraced

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


def install(patches: PatchSet, torch: Any, agent: Agent) -> None:
    """Patch both ways into the autograd engine.

    ``Tensor.backward`` calls ``autograd.backward``, and a Tensor subclass comes through each of them twice: only
    the outermost call of a thread counts.
    """
    inside = threading.local()

    def outermost(patch: Patch) -> bool:
        return patch.active and not getattr(inside, "backward", False)

    def told(tensors: Any, gradients: Any, create_graph: bool, call: Callable[[Any, Any], object]) -> None:
        """``call(tensors, gradients)``, of which the agent knows before and after."""
        inside.backward = True
        try:
            call(*agent.before_backward(tensors, gradients, create_graph))
        except BaseException as error:
            agent.errors.on_job_error(error)
            raise
        finally:
            inside.backward = False
        agent.after_backward()

    def make_method(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def backward(
            self: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
        ) -> None:
            if not outermost(patch):
                return original(self, gradient, retain_graph, create_graph, inputs=inputs)
            return told(self, gradient, create_graph, lambda t, g: original(t, g, retain_graph, create_graph, inputs=inputs))

        return untraced(backward)

    def make_function(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if not outermost(patch):
                return original(tensors, grad_tensors, *args, **kwargs)
            create_graph = kwargs.get("create_graph", args[1] if len(args) > 1 else False)
            return told(tensors, grad_tensors, create_graph, lambda t, g: original(t, g, *args, **kwargs))

        return untraced(backward)

    def make_grad(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if patch.active and (kwargs.get("create_graph") or (len(args) > 4 and args[4])):
                agent.double_backward = True
            return original(*args, **kwargs)

        return untraced(grad)

    patches.add("Tensor.backward", torch.Tensor, "backward", make_method)
    patches.add("autograd.backward", torch.autograd, "backward", make_function)
    patches.add("autograd.grad", torch.autograd, "grad", make_grad)
