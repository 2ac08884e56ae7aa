"""Whether a module treats the samples of a batch one by one, so that the batch may be computed in
other portions.

Asked of the module itself, once a size, with a batch of the job's: it is called on the whole and on
the parts, and the results must agree. What that cannot show is looked for beside it: buffers,
weights and counters that each call moves on (batch normalisation), tensors a call leaves behind for
the job to pick up, hooks, which would see the portions, and, after the first pass in portions,
losses that the model adds to its own backward.

Dropout draws other numbers in other portions, which is no dependence between samples: its layers
are silenced for the comparison, and the loss check allows for another random stream. Random numbers
of any other kind are not understood.

Both calls run without gradients and in full precision, on copies of the batch, and leave no trace:
random streams, buffers and what else the module keeps are put back (:mod:`.module_snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from autotune_trials.agent.controls.entry_modules import is_out_of_memory
from autotune_trials.agent.controls.sample_slices import (
    Call,
    Inseparable,
    join,
    leaves_of,
    with_leaves,
)
from autotune_trials.agent.loop.objective import losses_beside
from autotune_trials.agent.snapshots.module_snapshot import Kept

# Share of the largest value by which an output may differ. Sums in another order differ by 1e-6 in
# float32; normalisation over half of a batch of 1000 moves its output by 1e-2.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
REDUCED_TOLERANCE = 3e-2  # of 16-bit parameters, and of float32 products in TF32 or bfloat16
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def why_inseparable(
    torch: Any, module: Any, whole: Call, parts: Sequence[Call], lengths: Sequence[int]
) -> str:
    """Why ``whole`` must not be computed as ``parts`` (of ``lengths`` samples), or the other way
    round; "" if it may.
    """
    if any(getattr(m, name, None) for m in module.modules() for name in HOOKS) or _hooks_everywhere(
        torch
    ):
        return "the model has hooks, which would see other batches than the job's"
    with _no_trace(torch, module) as kept:
        try:
            for m in kept.modules:
                m.training = m.training and not drops(m)
            expected = _called(torch, module, whole)
            found = kept.changed()
            return found or _difference(
                torch,
                expected,
                join(torch, [_called(torch, module, part) for part in parts], lengths),
            )
        except Inseparable as reason:
            return str(reason)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            said = str(error).strip().splitlines()
            return (
                f"the model cannot be called on other portions of a batch ({type(error).__name__}:"
                f" {said[0][:120] if said else ''})"
            )


def _hooks_everywhere(torch: Any) -> bool:
    asked = getattr(torch.nn.modules.module, "_has_any_global_hook", None)
    return bool(asked is not None and asked())


def adds_losses(torch: Any, result: Any) -> str:
    """Why ``result``, which backward goes through, must not come from portions: its backward adds a
    loss of the batch as a whole (as mixtures of experts do to balance them). "" if it does not."""
    outputs = [leaf.grad_fn for leaf in leaves_of(result) if isinstance(leaf, torch.Tensor)]
    node = losses_beside(torch, outputs)
    return f"{node} adds a loss of the batch as a whole in the model's backward" if node else ""


def drops(module: Any) -> bool:
    """Whether ``module`` itself drops something at random in training: a dropout layer, or one with
    a rate of its own.
    """
    rates = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    layer = any(
        word in type(module).__name__ for word in ("Dropout", "DropPath", "StochasticDepth")
    )
    wanted = [value for name, value in rates.items() if "drop" in name or (layer and name == "p")]
    return any(0 < value <= 1 for value in wanted) or (layer and not wanted)


def _called(torch: Any, module: Any, call: Call) -> Any:
    """With copies of what the job calls it with, which must be as they were when the job's own pass
    comes.
    """
    copies = [
        leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves_of(call)
    ]
    versions = [getattr(copy, "_version", 0) for copy in copies]
    args, kwargs = with_leaves(call, copies)
    result = module._call_impl(*args, **kwargs)
    if [getattr(copy, "_version", 0) for copy in copies] != versions:
        raise Inseparable("the model changes in place what it is called with")
    return result


def _difference(torch: Any, whole: Any, joined: Any) -> str:
    left, right = leaves_of(whole), leaves_of(joined)
    for a, b in zip(left, right, strict=False):
        if not isinstance(a, torch.Tensor):
            continue
        if getattr(b, "shape", None) != a.shape:
            return "the model returns something else for a part of a batch than for the whole"
        if not (a.is_floating_point() or a.is_complex()):
            if not torch.equal(a, b):  # indices, masks
                return "the model's output for a sample depends on the other samples of its batch"
            continue
        largest = float(a.abs().max()) if a.numel() else 0.0
        if largest != largest or largest == float("inf"):
            return (
                "the model's output is not a finite number, so portions cannot be compared with the"
                " whole"
            )
        if a.numel() and float((a - b).abs().max()) > _tolerance(torch, a) * largest:
            return "the model's output for a sample depends on the other samples of its batch"
    return (
        ""
        if len(left) == len(right)
        else "the model returns something else for a part of a batch than for the whole"
    )


def _tolerance(torch: Any, tensor: Any) -> float:
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the job has used the newer fp32_precision settings
        exact = False
    kind = str(tensor.dtype).removeprefix("torch.")
    return (
        TOLERANCE.get(kind, REDUCED_TOLERANCE) if exact or kind == "float64" else REDUCED_TOLERANCE
    )


@contextmanager
def _no_trace(torch: Any, module: Any) -> Iterator[Kept]:
    kept = Kept(torch, module)
    device = next((p.device.type for p in module.parameters()), "cpu")
    cached = torch.is_autocast_cache_enabled()
    try:
        # Without the cache: weights cast here have no gradient, and must not serve the job's own
        # forward.
        torch.set_autocast_cache_enabled(False)
        with torch.no_grad(), torch.autocast(device, enabled=False):
            yield kept
    finally:
        torch.set_autocast_cache_enabled(cached)
        with torch.no_grad():
            kept.put_back()
