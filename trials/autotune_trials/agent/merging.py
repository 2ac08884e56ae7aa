"""Batches of one optimizer step computed in one pass of the model.

    loader    x₁            x₂            x₃            x₄             the job accumulates four batches a step
    job       model(x₁) ─ loss ─ backward │ model(x₂) ─ loss ─ backward │ … │ step
    model     one pass over x₁ … x₄       │ nothing, nothing, nothing
    handed    its first quarter           │ its second quarter, …
    backward  stops at the quarter        │ stops │ stops │ all four go back through the pass, before the step

The batches to come are fetched from the loader ahead of time and handed to the job when it asks for them. A group never
reaches beyond a step or the end of an epoch; how many batches a step has is learned from the steps before. What the
model is called with must be the loader's own tensors (or copies of them on the device), untouched, or what it will be
called with next is not known. Where the job does something else than expected, the group is dissolved with every
gradient in its place (:mod:`.merged_group`), and the trial is told.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from autotune_trials.agent.batches import tensors_of
from autotune_trials.agent.merged_group import MergedGroup
from autotune_trials.agent.parts import Call, Inseparable, join, leaves_of, with_leaves
from autotune_trials.measure.clock import DATA

STEPS_SEEN = 2  # steps that must be known before anything is merged
STEPS_KEPT = 3  # the shortest of so many steps says how many batches the next one has
RECENT = 4  # batches handed out last, in which the model's arguments are looked for: a loop may run some batches ahead
SYNC = "require_backward_grad_sync"  # of DistributedDataParallel: what no_sync() switches off, read in forward
COPIES = 64  # copies on the device that are remembered
PROVEN = 4  # batches whose content is compared with what was computed for them; later their version counters do
_CONSTANTS = (bool, int, float, str, type(None))


def _nothing() -> None:
    """Stands in for a reference that is not there."""


@contextmanager
def _exchanging(module: Any, last: bool) -> Iterator[None]:
    """DistributedDataParallel exchanges gradients in the backward of the pass inside, if it holds the ``last`` batch of a step."""
    own = getattr(module, SYNC, None)
    if own is None or not last:
        yield
        return
    setattr(module, SYNC, True)
    try:
        yield
    finally:
        setattr(module, SYNC, own)


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
    """Where the arguments of a call come from."""

    handed: Handed
    places: list[Place | None]  # one a leaf of the call; None for a constant
    constants: list[Any]


class Merging:
    """The groups of one entry module. ``micro``: the :class:`~.micro_batch.MicroBatch` it works for."""

    def __init__(self, torch: Any, agent: Any, micro: Any) -> None:
        self._torch, self._agent, self._micro = torch, agent, micro
        self._reasons: Counter[str] = Counter()  # what kept calls from being merged, and how often
        self.calls = 0  # of the model, since the last step
        self._backwards = agent.backwards  # of the job's, until the last step
        self._steps: deque[int] = deque(maxlen=STEPS_KEPT)  # calls in each of the last steps
        self._recent: deque[Handed] = deque(maxlen=RECENT)
        self._copies: dict[int, tuple[Any, Any, int]] = {}  # id of a tensor on the device -> (it and its source, weakly; its version)
        self._group: MergedGroup | None = None
        self._finished: list[MergedGroup] = []  # groups of this step that have gone back through the model
        self._proven = 0

    @property
    def under_way(self) -> bool:
        return self._group is not None

    @property
    def why_none(self) -> str:
        """What kept most calls from being merged where there was something to merge them with."""
        alone = f"{self._micro.size} samples hold no two batches that share an optimizer step, with one backward call each"
        return max(self._reasons, key=lambda reason: self._reasons[reason], default=alone)

    # ------------------------------------------------------------------ calls

    def run(self, entry: Any, call: Call, rows: int) -> Any:
        """The result of ``call``: a slice of the group's, or a pass of its own."""
        if self._group is not None:
            if self._is_next(call):
                return self._group.hand_out()
            self.abandon()
            self._micro.refuse("the job does not call the model once with each batch, as the loader gave it")
        elif not self._micro.refusal:
            self._group = self._begin(entry, call, rows)
            if self._group is not None:
                self._micro.resized += 1
                return self._group.hand_out()
        return self._micro.one_pass(entry, call)

    def _is_next(self, call: Call) -> bool:
        sources, group = self._sources(call), self._group
        if sources is None or group is None or not group.expects(sources.handed.batch, sources.places, sources.constants):
            return False
        self._proven += 1
        return self._proven > PROVEN or group.was_computed_from(call)

    def _begin(self, entry: Any, call: Call, rows: int) -> MergedGroup | None:
        """A group that begins with ``call``; None if there is to be none, for a reason that is counted."""
        wanted = min(self._micro.size // rows, self._left_in_step())
        if wanted < 2:
            return None
        sources = self._sources(call)
        try:
            if self._agent.in_step:
                raise Inseparable("the optimizer calls the model itself, by a closure")
            if self._agent.own_gradients or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in entry.module.parameters()):
                raise Inseparable("the job looks at the gradients of each backward call")
            if getattr(entry.module, SYNC, False):
                raise Inseparable("the processes exchange gradients after every batch: only under no_sync() do they wait for the step")
            if sources is None:
                raise Inseparable("the model is not called with the loader's tensors as they are, so the calls to come are not known")
            batches = self._batches_after(sources.handed, wanted - 1)
            calls = self._calls_with(call, sources, batches)
            if len(calls) < 2:
                raise Inseparable("no batch of the same kind comes after this one in its epoch")
            lengths = [self._length(c, sources.places) for c in calls]
            whole: Call = join(self._torch, calls, lengths)
        except Inseparable as reason:  # the next ones may fit
            self._reasons[str(reason)] += 1
            return None
        if not self._micro.allows(entry, whole, calls, lengths):
            return None
        with _exchanging(entry.module, len(calls) == self._left_in_step()):
            result = self._micro.one_pass(entry, whole)
        made_of = ([sources.handed.batch, *batches], sources.places, sources.constants)
        return MergedGroup(self._torch, whole, result, lengths, made_of, self._backward)

    def _left_in_step(self) -> int:
        """Batches of this step that are still to come, the present one among them."""
        return min(self._steps) - self.calls + 1 if len(self._steps) >= STEPS_SEEN else 0

    def _length(self, call: Call, places: list[Place | None]) -> int:
        leaves = leaves_of(call)
        return int(next(leaves[i] for i, place in enumerate(places) if place is not None).shape[0])

    # ------------------------------------------------------------------ what the model is called with

    def _sources(self, call: Call) -> Sources | None:
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

    def _origin(self, leaf: Any) -> tuple[Any, Any]:
        """(the tensor that ``leaf`` is, or views, or is an untouched copy of; the view). None for what backward goes through to."""
        if not isinstance(leaf, self._torch.Tensor) or leaf.requires_grad:
            return None, None
        view = None
        if leaf._is_view() and leaf._base is not None:
            view, leaf = (tuple(leaf.shape), leaf.stride(), leaf.storage_offset()), leaf._base
        copy, source, version = self._copies.get(id(leaf), (_nothing, _nothing, 0))
        return (source() if copy() is leaf and leaf._version == version else leaf), view

    def _batches_after(self, handed: Handed, count: int) -> list[Any]:
        """The next ``count`` batches; fewer at the end of the epoch."""
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

    def _calls_with(self, call: Call, sources: Sources, batches: list[Any]) -> list[Call]:
        """``call`` and the same with the batches after its own, until one is made otherwise."""
        leaves, calls = leaves_of(call), [call]
        for batch in batches:
            tensors = tensors_of(batch)
            if len(tensors) != len(sources.handed.tensors):
                break
            made = [leaf if p is None else self._made(leaf, p, sources.handed, tensors) for p, leaf in zip(sources.places, leaves, strict=True)]
            if any(p is not None and tensor is None for p, tensor in zip(sources.places, made, strict=True)):
                break
            calls.append(with_leaves(call, made))
        return calls

    def _made(self, leaf: Any, place: Place, handed: Handed, tensors: list[Any]) -> Any:
        """What ``leaf`` will be with another batch; None where that cannot be told."""
        model, tensor = handed.tensors[place.number], tensors[place.number]
        if tensor.device != leaf.device:
            tensor = tensor.to(leaf.device, non_blocking=tensor.is_pinned())
        if place.view is None:
            return tensor
        alike = tensor.shape == model.shape and tensor.is_contiguous() and model.is_contiguous() and not tensor._is_view()
        return tensor.as_strided(*place.view) if alike else None

    # ------------------------------------------------------------------ events

    def on_batch(self, loader: Any, batch: Any) -> None:
        """The loader hands out ``batch``."""
        if loader.training and max(self._steps, default=0) > 1:  # a job that does not accumulate pays nothing, and keeps nothing
            tensors = tensors_of(batch)
            self._recent.append(Handed(batch, self._agent.loader_hooks.last[0], tensors, [t._version for t in tensors]))

    def note_copy(self, source: Any, copy: Any) -> None:
        """The job has copied ``source`` to the device."""
        if len(self._copies) >= COPIES:
            self._copies = {key: known for key, known in self._copies.items() if known[0]() is not None}
        self._copies[id(copy)] = (weakref.ref(copy), weakref.ref(source), copy._version)

    def after_backward(self) -> None:
        """The last member of a group sends all of them back through the model."""
        group = self._group
        if group is not None and group.complete:
            self._group = None
            self._finished.append(group)
            group.go_back()

    def before_step(self) -> None:
        """An optimizer is about to step."""
        if self._group is not None:
            self.abandon()
            self._micro.refuse("the optimizer stepped after fewer batches than before")
        if any(group.came_late() for group in self._finished):
            self._micro.refuse("backward ran more than once on one result of the model")
            self._agent.on_knob_failure(f"micro_batch_size: {self._micro.refusal}")  # this step lacks a gradient
        self._finished.clear()
        if self.calls:
            once = self._agent.backwards - self._backwards == self.calls  # a second one on a batch would find its pass gone
            self._steps.append(self.calls if once else 0)
        self.calls, self._backwards = 0, self._agent.backwards

    def abandon(self) -> None:
        """Dissolve the group: what has come back so far goes through the model now, what comes later will then."""
        group, self._group = self._group, None
        if group is not None:
            group.dissolve()

    def _backward(self, tensors: list[Any], gradients: list[Any], retain_graph: bool) -> None:
        original = self._agent.patches["autograd.backward"].original  # torch's own: this is no backward of the job's
        original(tensors, gradients, retain_graph=retain_graph)
