"""What a module keeps beside its weights, and the random streams: noted before a call, compared
after it, put back.

Looked at are buffers, and whatever a module has as attributes of its own: numbers, tensors, and the
lists, dicts and plain objects that hold them. Weights are only compared, by their norms: a copy of
them all may not fit beside the model, so what a forward does to them (a slow copy that follows
them) happens once before it is seen.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

DEPTH = 2  # containers within containers
MEMBERS = 64  # of one container
_WORDS = (bool, int, float, complex, str, bytes, type(None))
_SAID = {
    "tensor": "keeps a tensor of its last pass, which the job may use",
    "other": "changes its own {} in each pass",
}
_CONTAINERS = (list, tuple, dict, set, deque)


class Kept:
    """As it was when this was made."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self.modules = list(module.modules())
        self._torchs = {*vars(torch.nn.Module()), "_compiled_call_impl"}
        self._training = [m.training for m in self.modules]
        self._buffers = [
            (m, name, b, b.detach().clone())
            for m in self.modules
            for name, b in m._buffers.items()
            if b is not None
        ]
        self._attributes = [self._own(m) for m in self.modules]
        self._members = [
            {name: _copy(value) for name, value in own.items()} for own in self._attributes
        ]
        self._marks = [
            {name: _marks(torch, value) for name, value in own.items()} for own in self._attributes
        ]
        self._weights = self._norms()
        self._streams = _random_states(torch)

    def changed(self) -> str:
        """What a call has changed, in words; "" if nothing."""
        if any(
            not _same_stream(self._torch, a, b)
            for a, b in zip(self._streams, _random_states(self._torch), strict=True)
        ):
            return "the model draws random numbers, not only in layers of dropout"
        for module, name, before, value in self._buffers:
            if module._buffers.get(name) is not before or not self._torch.equal(before, value):
                return (
                    f"{type(module).__name__} changes its own {name} in each pass (as batch"
                    " normalisation does)"
                )
        if self._norms() != self._weights:
            return "the model changes its own weights in each pass"
        for module, marks in zip(self.modules, self._marks, strict=True):
            for name, value in self._own(module).items():
                found = _difference(self._torch, marks.get(name, []), _marks(self._torch, value))
                if found:
                    return f"{type(module).__name__} {_SAID[found].format(name)}"
        return ""

    def put_back(self) -> None:
        for module, training in zip(self.modules, self._training, strict=True):
            module.training = training
        for module, name, before, value in self._buffers:
            if module._buffers.get(name) is not before or not self._torch.equal(before, value):
                before.copy_(value)
                module._buffers[name] = before
        for module, own, members in zip(self.modules, self._attributes, self._members, strict=True):
            for name in [n for n in self._own(module) if n not in own]:
                del vars(module)[name]
            vars(module).update(own)
            for name, before in members.items():
                _refill(own[name], before)
        _give_back(self._torch, self._streams)

    def _own(self, module: Any) -> dict[str, Any]:
        """Attributes that are not torch's."""
        return {name: value for name, value in vars(module).items() if name not in self._torchs}

    def _norms(self) -> list[Any]:
        """Of the weights in the order of the modules, with where they lie; those of types without a
        norm by that alone.
        """
        found = []
        for module in self.modules:
            for weight in module._parameters.values():
                if weight is not None:
                    usual = (
                        weight.is_floating_point()
                        and weight.element_size() > 1
                        and weight.layout == self._torch.strided
                    )
                    norm = self._torch.linalg.vector_norm(weight.detach()) if usual else None
                    found.append((id(weight), weight._version, norm))
        return [
            (which, version, None if norm is None else float(norm))
            for which, version, norm in found
        ]


def _marks(torch: Any, value: Any, depth: int = 0) -> list[Any]:
    """``value`` as a list that differs where something in it was changed. It holds its tensors, so
    that none takes another's place.
    """
    if isinstance(value, torch.Tensor):
        return [(value, None if value.is_inference() else value._version)]
    if isinstance(value, _WORDS):
        return [repr(value)]  # so that a nan is the same nan
    if isinstance(value, torch.nn.Module) or depth > DEPTH:
        return []
    members = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, _CONTAINERS)
        else None
    )
    if members is None:
        members = (
            getattr(value, "__dict__", {}).values()
            if depth == 0 and not isinstance(value, type) and not callable(value)
            else ()
        )
    size = [len(members)] if hasattr(members, "__len__") else []
    return [
        *size,
        *(mark for member in _first(members) for mark in _marks(torch, member, depth + 1)),
    ]


def _first(members: Any) -> Iterator[Any]:
    return (member for member, _ in zip(list(members), range(MEMBERS), strict=False))


def _difference(torch: Any, before: Sequence[Any], after: Sequence[Any]) -> str:
    """ "tensor" if a tensor is new among them, "other" for anything else, "" for nothing."""
    known = {id(mark[0]) for mark in before if isinstance(mark, tuple)}
    if any(isinstance(mark, tuple) and id(mark[0]) not in known for mark in after):
        return "tensor"
    return "" if [_plain(mark) for mark in before] == [_plain(mark) for mark in after] else "other"


def _plain(mark: Any) -> Any:
    return (id(mark[0]), mark[1]) if isinstance(mark, tuple) else mark


def _copy(value: Any) -> Any:
    """Members of a container, or of an object; None for anything else."""
    if type(value) in (list, dict, set, deque):
        return value.copy()
    return None


def _refill(value: Any, before: Any) -> None:
    """Give a container its members back."""
    if before is None or (
        len(value) == len(before)
        and all(a is b for a, b in zip(_flat(value), _flat(before), strict=True))
    ):
        return
    value.clear()
    value.extend(before) if hasattr(value, "extend") else value.update(before)


def _flat(value: Any) -> list[Any]:
    return (
        [part for item in value.items() for part in item]
        if isinstance(value, dict)
        else list(value)
    )


def _random_states(torch: Any) -> list[Any]:
    numpy = sys.modules.get("numpy")
    states = [
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state(legacy=False) if numpy is not None else None,
    ]
    return [
        *states,
        torch.stack(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else None,
    ]


def _same_stream(torch: Any, a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if isinstance(a, dict):  # numpy's: its key is an array
        inside, other = a["state"], b["state"]
        return inside["pos"] == other["pos"] and bytes(inside["key"]) == bytes(other["key"])
    return bool(a == b)


def _give_back(torch: Any, states: list[Any]) -> None:
    host, python, numpy_state, devices = states
    torch.set_rng_state(host)
    random.setstate(python)
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)
    if devices is not None:
        torch.cuda.set_rng_state_all(devices)
