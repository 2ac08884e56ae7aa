"""Whether a module treats the samples of a batch one by one, so that the batch may be computed in other portions.

Asked of the module itself, once a size, with a batch of the job's: it is called on the whole and on the parts, and the
results must agree. What that cannot show is looked for beside it: buffers and counters that each call moves on (batch
normalisation), tensors a call leaves behind for the job to pick up, and hooks, which would see the portions.

Dropout draws other numbers in other portions, which is no dependence between samples: its layers are silenced for the
comparison, and the loss check allows for another random stream. Random numbers of any other kind are not understood.

Both calls run without gradients and in full precision, and leave no trace: random streams and buffers are put back.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from autotune_trials.agent.entries import is_out_of_memory
from autotune_trials.agent.parts import Call, Inseparable, join, leaves_of

# Share of the largest value by which an output may differ. Sums in another order differ by 1e-6 in float32; normalisation over
# half of a batch of 1000 moves its output by 1e-2.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
REDUCED_TOLERANCE = 3e-2  # of 16-bit parameters, and of float32 products in TF32 or bfloat16
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MODULES_OWN = ("_parameters", "_buffers", "_modules")


def why_inseparable(torch: Any, module: Any, whole: Call, parts: Sequence[Call], lengths: Sequence[int]) -> str:
    """Why ``whole`` must not be computed as ``parts`` (of ``lengths`` samples), or the other way round; "" if it may."""
    if any(getattr(m, name, None) for m in module.modules() for name in HOOKS):
        return "the model has hooks, which would see other batches than the job's"
    with _no_trace(torch, module) as trace:
        try:
            for m in trace.modules:
                m.training = m.training and not drops(m)
            expected = _called(torch, module, whole)
            found = trace.what_it_left()
            return found or _difference(torch, expected, join(torch, [_called(torch, module, part) for part in parts], lengths))
        except Inseparable as reason:
            return str(reason)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            said = str(error).strip().splitlines()
            return f"the model cannot be called on other portions of a batch ({type(error).__name__}: {said[0][:120] if said else ''})"


def drops(module: Any) -> bool:
    """Whether ``module`` itself drops something at random in training: a dropout layer, or one with a rate of its own."""
    rates = {name: value for name, value in vars(module).items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    layer = any(word in type(module).__name__ for word in ("Dropout", "DropPath", "StochasticDepth"))
    wanted = [value for name, value in rates.items() if "drop" in name or (layer and name == "p")]
    return any(0 < value <= 1 for value in wanted) or (layer and not wanted)


def _called(torch: Any, module: Any, call: Call) -> Any:
    args, kwargs = call
    return module._call_impl(*args, **kwargs)


def _difference(torch: Any, whole: Any, joined: Any) -> str:
    left, right = leaves_of(whole), leaves_of(joined)
    for a, b in zip(left, right, strict=False):
        if not isinstance(a, torch.Tensor) or not (a.is_floating_point() or a.is_complex()):
            continue
        if getattr(b, "shape", None) != a.shape:
            return "the model returns something else for a part of a batch than for the whole"
        largest = float(a.abs().max()) if a.numel() else 0.0
        if largest != largest or largest == float("inf"):
            return "the model's output is not a finite number, so portions cannot be compared with the whole"
        if a.numel() and float((a - b).abs().max()) > _tolerance(torch, a) * largest:
            return "the model's output for a sample depends on the other samples of its batch"
    return "" if len(left) == len(right) else "the model returns something else for a part of a batch than for the whole"


def _tolerance(torch: Any, tensor: Any) -> float:
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the job has used the newer fp32_precision settings
        exact = False
    kind = str(tensor.dtype).removeprefix("torch.")
    return TOLERANCE.get(kind, REDUCED_TOLERANCE) if exact or kind == "float64" else REDUCED_TOLERANCE


class _Trace:
    """What the module and the random streams were before, and what a call has done to them."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self.modules = list(module.modules())
        self._buffers = [(m, name, b, b.detach().clone()) for m in self.modules for name, b in m._buffers.items() if b is not None]
        self._numbers = [_numbers(m) for m in self.modules]
        self._tensors = {id(t) for m in self.modules for t in _tensors(torch, m)}
        self._streams = _random_states(torch)

    def what_it_left(self) -> str:
        if any(not _same_state(self._torch, a, b) for a, b in zip(self._streams, _random_states(self._torch), strict=True)):
            return "the model draws random numbers, not only in layers of dropout"
        for module, name, before, value in self._buffers:
            if module._buffers.get(name) is not before or not self._torch.equal(before, value):
                return f"{type(module).__name__} changes its own {name} in each pass (as batch normalisation does)"
        for module, before in zip(self.modules, self._numbers, strict=True):
            now = {name: value for name, value in _numbers(module).items() if name != "training"}
            changed = [name for name, value in now.items() if name not in before or before[name] != value]
            if changed:
                return f"{type(module).__name__} changes its own {changed[0]} in each pass"
        for module in self.modules:
            if any(id(t) not in self._tensors for t in _tensors(self._torch, module)):
                return f"{type(module).__name__} keeps a tensor of its last pass, which the job may use"
        return ""

    def undo(self) -> None:
        for module, name, before, value in self._buffers:
            if module._buffers.get(name) is not before or not self._torch.equal(before, value):
                before.copy_(value)
                module._buffers[name] = before
        for module, numbers in zip(self.modules, self._numbers, strict=True):
            vars(module).update(numbers)
        _give_back(self._torch, self._streams)


@contextmanager
def _no_trace(torch: Any, module: Any) -> Iterator[_Trace]:
    trace = _Trace(torch, module)
    device = next((p.device.type for p in module.parameters()), "cpu")
    cached = torch.is_autocast_cache_enabled()
    try:
        # Without the cache: weights cast here have no gradient, and must not serve the job's own forward.
        torch.set_autocast_cache_enabled(False)
        with torch.no_grad(), torch.autocast(device, enabled=False):
            yield trace
    finally:
        torch.set_autocast_cache_enabled(cached)
        with torch.no_grad():
            trace.undo()


def _numbers(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, (bool, int, float))}


def _tensors(torch: Any, module: Any) -> list[Any]:
    """Tensors that are plain attributes, or lie in a list, tuple or dict that is one."""
    found = []
    for name, value in vars(module).items():
        if name not in _MODULES_OWN:
            several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
            found += [t for t in several if isinstance(t, torch.Tensor)]
    return found


def _random_states(torch: Any) -> list[Any]:
    numpy = sys.modules.get("numpy")
    states = [torch.get_rng_state(), random.getstate(), numpy.random.get_state(legacy=False) if numpy is not None else None]
    return [*states, torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None]


def _same_state(torch: Any, a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if isinstance(a, dict):  # numpy's: its key is an array
        inside, other = a["state"], b["state"]
        return inside["pos"] == other["pos"] and bytes(inside["key"]) == bytes(other["key"])
    return bool(a == b)


def _give_back(torch: Any, states: list[Any]) -> None:
    host, python, numpy_state, device = states
    torch.set_rng_state(host)
    random.setstate(python)
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)
    if device is not None:
        torch.cuda.set_rng_state(device)
