"""``backward``: where the loss is known and the forward region ends."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.loop.fake_tensors import without_data
from autotune_trials.agent.patches.patch_set import Patch, PatchSet, untraced

if TYPE_CHECKING:
    from autotune_trials.agent.core.training_loop import TrainingLoop
    from autotune_trials.agent.facts.job_traits import JobTraits

NAME = "autograd.backward"


def install(patches: PatchSet, torch: Any, loop: TrainingLoop, traits: JobTraits) -> None:
    """Patch the entry to the autograd engine, which ``Tensor.backward`` uses as well.

    A Tensor subclass passes through here twice: only the outermost call of a thread counts. Nor
    does a backward inside another one count (reentrant checkpointing); on CUDA it runs on a thread
    of the autograd engine, so the engine is asked.
    """
    state = loop.state
    inside = set[int]()  # threads that are in a backward the agent knows of
    running_graph = torch._C._current_graph_task_id  # -1: this thread is in no backward

    def make_function(patch: Patch, original: Any) -> Any:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            thread = get_ident()
            nested = thread in inside or running_graph() != -1
            if nested or not patch.active or state.frozen or without_data(tensors):
                original(tensors, grad_tensors, *args, **kwargs)
                return
            if kwargs.get("create_graph") or (len(args) > 1 and args[1]):
                traits.double_backward = True
            inside.add(thread)
            try:
                tensors, grad_tensors = loop.start_backward(tensors, grad_tensors)
                original(tensors, grad_tensors, *args, **kwargs)
            except BaseException as error:
                loop.fail_backward(error)
                raise
            finally:
                inside.discard(thread)
            loop.end_backward()

        return untraced(backward)

    patches.add(NAME, torch.autograd, "backward", make_function)


def install_grad(patches: PatchSet, torch: Any, loop: TrainingLoop, traits: JobTraits) -> None:
    """Note ``torch.autograd.grad(…, create_graph=True)``, and the gradients of torch.func, which
    also pass through here. Gradients that a hook takes during backward (per-sample ones in Opacus)
    are part of that backward. Other gradients taken this way may be those of anything (a penalty,
    an input), so a job that trains with nothing else has no backward here (docs/compatibility.md).
    """
    inside_transform = torch._C._functorch.maybe_current_level

    def make_grad(patch: Patch, original: Any) -> Any:
        def grad(*args: Any, **kwargs: Any) -> Any:
            transformed = patch.active and inside_transform() is not None
            if transformed and loop.state.in_backward:
                return original(*args, **kwargs)
            if patch.active and (kwargs.get("create_graph") or (len(args) > 4 and args[4])):
                traits.double_backward = True
            if not transformed:
                loop.state.took_gradients = True
                return original(*args, **kwargs)
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside

            with outside():
                loss = _plain(torch, args[0] if args else None)
            if without_data(loss):  # dynamo traces the job's function
                return original(*args, **kwargs)
            with outside():
                loop.start_functional(loss)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                loop.note_error(error)
                raise
            with outside():
                loop.end_backward()
            return result

        return untraced(grad)

    patches.add("autograd.grad", torch.autograd, "grad", make_grad)


def _plain(torch: Any, outputs: Any) -> Any:
    """The value that a transform of torch.func differentiates, unwrapped; the mean if vmap takes
    many gradients at once. None if it is not a loss."""
    functorch = torch._C._functorch
    try:
        (loss,) = outputs
        while functorch.is_functorch_wrapped_tensor(loss):
            loss = functorch.get_unwrapped(loss)
        return loss.detach().mean()
    except Exception:  # several outputs, or not a number: a Jacobian
        return None
