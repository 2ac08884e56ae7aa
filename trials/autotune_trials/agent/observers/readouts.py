"""Tensors read out into Python values. On a device each of these waits until the device has caught
up.
"""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.observers.calls import About, CallObserver, Describe, shape_of

METHODS = {
    "item": "item",
    "tolist": "tolist",
    "numpy": "numpy",
    "__array__": "numpy",
    "cpu": "cpu",
    "__bool__": "bool",
    "__float__": "float",
    "__int__": "int",
    "__index__": "int",
    "__repr__": "repr",
    "__format__": "format",
}


def install(calls: CallObserver) -> None:
    """Watch Tensor methods and ``torch.cuda.synchronize``; :mod:`copies` handles ``to("cpu")`` with
    its moves.
    """
    torch = calls.torch
    for method, kind in METHODS.items():
        calls.watch_calls(torch.Tensor, method, describe(kind), of_tensor=True, internal=False)
    if torch.cuda.is_available():
        calls.watch_calls(
            torch.cuda, "synchronize", lambda args, kwargs, result: About("synchronize", "cuda")
        )


def describe(kind: str) -> Describe:
    def about(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About | None:
        tensor = args[0]
        if kind == "cpu" and result is tensor:
            return None
        return About(kind, tensor.device.type, shape_of(tensor))

    return about
