"""Tensors made from arrays and lists, tensors made on the host and then moved, and moves to the
device.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from autotune_trials.agent.observers.calls import About, CallObserver, Origin, bytes_of, shape_of
from autotune_trials.protocol.evidence import Transfer

MAKERS = """
    rand randn randint randperm normal bernoulli zeros ones full empty arange linspace eye
""".split()
SMALL_BYTES = 4096  # of a tensor made on the host; a smaller move is all launch cost


def install(calls: CallObserver) -> None:
    torch = calls.torch
    prime_device_context(torch)
    moves = Moves(calls)
    for name in ("tensor", "as_tensor"):
        calls.watch_calls(torch, name, moves.from_data)
    for name in MAKERS:
        calls.watch_calls(torch, name, moves.made)
    for name in ("to", "cuda"):
        calls.watch_calls(torch.Tensor, name, moves.moved, of_tensor=True)
    calls.at_end(moves.fields)


def from_data(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About | None:
    """``torch.tensor(array or list)`` copies; a single number is ignored."""
    data: Any = args[0] if args else kwargs.get("data")
    sequence = isinstance(data, (list, tuple))
    if not sequence and not hasattr(data, "__array__"):
        return None
    if result.numel() < 2 or (hasattr(data, "__array__") and shares(data, result)):
        return None
    what = (
        f"a {type(data).__name__} of {len(data)}"
        if sequence
        else f"a {type(data).__module__.partition('.')[0]} array"
    )
    return About(
        "tensor_from_array", result.device.type, f"{shape_of(result)} of {what}", bytes_of(result)
    )


def shares(data: Any, result: Any) -> bool:
    """Whether memory is shared: ``as_tensor`` does so for an array with a dtype that torch has."""
    interface = getattr(data, "__array_interface__", None)
    return (
        result.device.type == "cpu"
        and interface is not None
        and interface["data"][0] == result.data_ptr()
    )


class Moves:
    """Remembers tensors made on the host, and recognizes them when they are moved as they are: one
    that was filled there, as by a collate function, could not be made on the device.
    """

    def __init__(self, calls: CallObserver) -> None:
        self._calls = calls
        # id -> the tensor, its version, where it was made, how long that took
        self._made: dict[int, tuple[Any, int | None, Origin, About, float]] = {}
        self._transfers: dict[tuple[int, int, bool, bool], list[Any]] = {}

    def from_data(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About | None:
        data: Any = args[0] if args else kwargs.get("data")
        if hasattr(data, "element_size"):  # a tensor, made elsewhere
            return self.moved((data,), {}, result)
        return from_data(args, kwargs, result)

    def made(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About | None:
        if result.device.type == "cpu" and bytes_of(result) >= SMALL_BYTES:
            key = id(result)
            about = About("made_on_host", "cpu", shape_of(result), bytes_of(result))
            gone = weakref.ref(result, lambda _: self._made.pop(key, None))
            here, seconds = self._calls.here(), self._calls.last_s
            self._made[key] = (gone, _version(result), here, about, seconds)
        return None  # harmless unless it is moved

    def moved(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About | None:
        tensor, seconds = args[0], self._calls.last_s
        source, target = tensor.device.type, result.device.type
        if source == target:
            return None
        if target == "cpu":
            return About("cpu", source, shape_of(tensor))
        if source != "cpu":
            return None
        made = self._made.pop(id(tensor), None)
        if made is not None and made[0]() is tensor and made[1] in (None, _version(tensor)):
            _, _, origin, about, making_s = made
            self._calls.add(about._replace(device=target), origin, making_s + seconds)
            return None  # pinning would not help: it belongs on the device from the start
        pinned = target == "cuda" and bool(tensor.is_pinned())
        non_blocking = bool(kwargs.get("non_blocking", any(a is True for a in args[2:])))
        spot = self._calls.here().spot
        known = self._transfers.setdefault(
            (id(spot[0]), spot[1], pinned, non_blocking), [spot, 0, 0.0]
        )
        known[1:] = known[1] + bytes_of(tensor), known[2] + seconds
        return None

    def fields(self) -> dict[str, Any]:
        place = self._calls.watch.places.place
        return {
            "transfers": tuple(
                Transfer(place(spot), nbytes, seconds, pinned, non_blocking)
                for (*_, pinned, non_blocking), (spot, nbytes, seconds) in self._transfers.items()
            )
        }


def _version(tensor: Any) -> int | None:
    """How often it was written to; None: not counted."""
    return None if tensor.is_inference() else int(tensor._version)


def prime_device_context(torch: Any) -> None:
    """``with torch.device("cuda")`` caches a set of torch's functions on first use: cache it before
    we patch them.
    """
    module = sys.modules.get("torch.utils._device")
    constructors = getattr(module, "_device_constructors", None)
    if constructors is not None:
        constructors()
