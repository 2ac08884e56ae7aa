"""Which of the loader's tensors the model is called with, and so what it will be called with for the batches to come.

    loader ── batch ──▶ Handed     its tensors, and their version counters then
    job    ── x.to(device), x.view(…) ──▶ model(x)
    here      model's x ─▶ copy of? view of? ─▶ tensor 0 of that batch ─▶ made in the same way of the next batches

Only what can be told without running the job's code: the tensors themselves, untouched copies of them on the device,
and views. Anything computed from them is not followed.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple

from autotune_trials.agent.controls.sample_slices import Call, leaves_of, with_leaves
from autotune_trials.agent.loop.batches import tensors_of
from autotune_trials.measure.clock import DATA

RECENT = 4  # batches handed out last, in which the model's arguments are looked for: a loop may run some batches ahead
COPIES = 64  # copies on the device that are remembered
_CONSTANTS = (bool, int, float, str, type(None))


class Handed(NamedTuple):
    """A batch the loader has handed out."""

    batch: Any
    iterator: Any  # weak, of the loader it came from
    tensors: list[Any]
    versions: list[int]  # of the tensors, then


class Place(NamedTuple):
    """Where an argument comes from: the number of the batch's tensor, and which view of it (shape, strides, offset)."""

    number: int
    view: tuple[Any, Any, int] | None = None  # None: the tensor itself


class Sources(NamedTuple):
    """What a call is made of."""

    handed: Handed
    places: list[Place | None]  # one a leaf of the call; None for a constant
    constants: list[Any]


class Provenance:
    """Remembers what the loader has handed out and what the job has copied to the device."""

    def __init__(self, torch: Any, agent: Any) -> None:
        self._torch, self._agent = torch, agent
        self._recent: deque[Handed] = deque(maxlen=RECENT)
        self._copies: dict[int, tuple[Any, Any, int]] = {}  # id of a tensor on the device -> (it and its source, weakly; its version)

    def note_batch(self, batch: Any) -> None:
        """The loader hands out ``batch``."""
        tensors = tensors_of(batch)
        self._recent.append(Handed(batch, self._agent.loader_hooks.last[0], tensors, [t._version for t in tensors]))

    def note_copy(self, source: Any, copy: Any) -> None:
        """The job has copied ``source`` to the device."""
        if len(self._copies) >= COPIES:
            self._copies = {key: known for key, known in self._copies.items() if known[0]() is not None}
        self._copies[id(copy)] = (weakref.ref(copy), weakref.ref(source), copy._version)

    def of(self, call: Call) -> Sources | None:
        """None if ``call`` is not made of one batch's tensors, as they were handed out, and constants."""
        leaves = leaves_of(call)
        origins = [self._origin(leaf) for leaf in leaves]
        for handed in reversed(self._recent):
            number = {id(t): i for i, t in enumerate(handed.tensors)}
            places = [Place(number[id(o)], view) if id(o) in number else None for o, view in origins]
            if any(place is not None for place in places):
                constants = [leaf for leaf, place in zip(leaves, places, strict=True) if place is None]
                touched = any(p is not None and handed.tensors[p.number]._version != handed.versions[p.number] for p in places)
                plain = all(isinstance(leaf, _CONSTANTS) for leaf in constants)
                return Sources(handed, places, constants) if plain and not touched else None
        return None

    def batches_after(self, handed: Handed, count: int) -> list[Any]:
        """The next ``count`` batches, fetched now if need be; fewer at the end of the epoch."""
        position = next(i for i, other in enumerate(self._recent) if other is handed)
        known = [other.batch for other in list(self._recent)[position + 1 :] if other.iterator is handed.iterator][:count]
        iterator = handed.iterator()
        if len(known) == count or iterator is None:
            return known
        clock = self._agent.clock
        phase = clock.phase
        clock.switch(DATA)
        try:
            return known + iterator.ahead(count - len(known))
        finally:
            clock.switch(phase)

    def calls_with(self, call: Call, sources: Sources, batches: list[Any]) -> list[Call]:
        """``call`` and the same with ``batches``, until one of them is made otherwise."""
        leaves, calls = leaves_of(call), [call]
        for batch in batches:
            tensors = tensors_of(batch)
            if len(tensors) != len(sources.handed.tensors):
                break
            made = [leaf if p is None else _made(leaf, p, sources.handed, tensors) for p, leaf in zip(sources.places, leaves, strict=True)]
            if any(p is not None and tensor is None for p, tensor in zip(sources.places, made, strict=True)):
                break
            calls.append(with_leaves(call, made))
        return calls

    def _origin(self, leaf: Any) -> tuple[Any, Any]:
        """(the tensor that ``leaf`` is, or views, or is an untouched copy of; the view). None for what backward goes through to."""
        if not isinstance(leaf, self._torch.Tensor) or leaf.requires_grad:
            return None, None
        view = None
        if leaf._is_view() and leaf._base is not None:
            view, leaf = (tuple(leaf.shape), leaf.stride(), leaf.storage_offset()), leaf._base
        copy, source, version = self._copies.get(id(leaf), (_nothing, _nothing, 0))
        return (source() if copy() is leaf and leaf._version == version else leaf), view


def length_of(call: Call, sources: Sources) -> int:
    """Samples in ``call``, which is made as ``sources`` say."""
    leaf = next(leaf for leaf, place in zip(leaves_of(call), sources.places, strict=True) if place is not None)
    return int(leaf.shape[0])


def _made(leaf: Any, place: Place, handed: Handed, tensors: list[Any]) -> Any:
    """What ``leaf`` will be with another batch; None where that cannot be told."""
    model, tensor = handed.tensors[place.number], tensors[place.number]
    alike = tensor.shape == model.shape and tensor.is_contiguous() and model.is_contiguous() and not tensor._is_view()
    if tensor.device != leaf.device:
        tensor = tensor.to(leaf.device, non_blocking=tensor.is_pinned())
    if place.view is None:
        return tensor
    return tensor.as_strided(*place.view) if alike else None


def _nothing() -> None:
    """Stands in for a reference that is not there."""
