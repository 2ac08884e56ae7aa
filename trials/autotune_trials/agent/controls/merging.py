"""Batches of one optimizer step computed in one pass of the model.

    loader    x₁            x₂            x₃            x₄             the job accumulates four batches a step
    job       model(x₁) ─ loss ─ backward │ model(x₂) ─ loss ─ backward │ … │ step
    model     one pass over x₁ … x₄       │ nothing, nothing, nothing
    handed    its first quarter           │ its second quarter, …
    backward  stops at the quarter        │ stops │ stops │ all four go back through the pass, before the step

The batches to come are fetched from the loader ahead of time and handed to the job when it asks for them. A group never
reaches beyond a step or the end of an epoch; how many batches a step has is learned from the steps before, and what the
model will be called with from what it is called with now (:mod:`.provenance`). Where the job does something else than
expected, the group is dissolved with every gradient in its place (:mod:`.merged_group`), and the trial is told.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autotune_trials.agent.controls.merged_group import MergedGroup
from autotune_trials.agent.controls.provenance import Provenance, length_of
from autotune_trials.agent.controls.sample_slices import Call, Inseparable, join

STEPS_SEEN = 2  # steps that must be known before anything is merged
STEPS_KEPT = 3  # the shortest of so many steps says how many batches the next one has
SYNC = "require_backward_grad_sync"  # of DistributedDataParallel: what no_sync() switches off, read in forward
PROVEN = 4  # batches whose content is compared with what was computed for them; later their version counters do


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


class Merging:
    """The groups of one entry module. ``micro``: the :class:`~.micro_batch.MicroBatch` it works for."""

    def __init__(self, torch: Any, agent: Any, micro: Any) -> None:
        self._torch, self._agent, self._micro = torch, agent, micro
        self._reasons: Counter[str] = Counter()  # what kept calls from being merged, and how often
        self.calls = 0  # of the model, since the last step
        self._backwards = agent.backwards  # of the job's, until the last step
        self._steps: deque[int] = deque(maxlen=STEPS_KEPT)  # calls in each of the last steps
        self.provenance = Provenance(torch, agent)
        self._group: MergedGroup | None = None
        self._finished: list[MergedGroup] = []  # groups of this step that have gone back through the model
        self._proven = 0

    @property
    def under_way(self) -> bool:
        return self._group is not None

    @property
    def has_gradients(self) -> bool:
        """Backward has reached a batch of a group that has not gone back yet."""
        return self._group is not None and self._group.has_gradients

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
        sources, group = self.provenance.of(call), self._group
        if sources is None or group is None or not group.expects(sources.handed.batch, sources.places, sources.constants):
            return False
        self._proven += 1
        return self._proven > PROVEN or group.was_computed_from(call)

    def _begin(self, entry: Any, call: Call, rows: int) -> MergedGroup | None:
        """A group that begins with ``call``; None if there is to be none, for a reason that is counted."""
        wanted = min(self._micro.size // rows, self._left_in_step())
        if wanted < 2:
            return None
        sources = self.provenance.of(call)
        try:
            self._stand_against(entry.module)
            if sources is None:
                raise Inseparable("the model is not called with the loader's tensors as they are, so the calls to come are not known")
            batches = self.provenance.batches_after(sources.handed, wanted - 1)
            calls = self.provenance.calls_with(call, sources, batches)
            if len(calls) < 2:
                raise Inseparable("no batch of the same kind comes after this one in its epoch")
            lengths = [length_of(c, sources) for c in calls]
            whole: Call = join(self._torch, calls, lengths)
        except Inseparable as reason:  # the next ones may fit
            self._reasons[str(reason)] += 1
            return None
        if not self._micro.allows(entry, whole, calls, lengths):
            return None
        with _exchanging(entry.module, len(calls) == self._left_in_step()):
            result = self._micro.one_pass(entry, whole)
        try:
            self._micro.look_back(entry, result)
        except Inseparable as reason:
            self._micro.refuse(str(reason))
            return None
        made_of = ([sources.handed.batch, *batches], sources.places, sources.constants)
        return MergedGroup(self._torch, whole, result, lengths, made_of, self._backward)

    def _stand_against(self, module: Any) -> None:
        """Raises Inseparable where gradients have to be there after every batch."""
        if self._agent.in_step:
            raise Inseparable("the optimizer calls the model itself, by a closure")
        if self._agent.own_gradients or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in module.parameters()):
            raise Inseparable("the job looks at the gradients of each backward call")
        if getattr(module, SYNC, False):
            raise Inseparable("the processes exchange gradients after every batch: only under no_sync() do they wait for the step")

    def _left_in_step(self) -> int:
        """Batches of this step that are still to come, the present one among them."""
        return min(self._steps) - self.calls + 1 if len(self._steps) >= STEPS_SEEN else 0

    # ------------------------------------------------------------------ events

    def on_batch(self, loader: Any, batch: Any) -> None:
        """The loader hands out ``batch``."""
        if loader.training and max(self._steps, default=0) > 1:  # a job that does not accumulate pays nothing, and keeps nothing
            self.provenance.note_batch(batch)

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
            self._agent.knobs.fail(f"micro_batch_size: {self._micro.refusal}")  # this step lacks a gradient
        self._finished.clear()
        if self.calls:
            once = self._agent.backwards - self._backwards == self.calls  # a second one on a batch would find its pass gone
            self._steps.append(self.calls if once else 0)
        self.calls, self._backwards = 0, self._agent.backwards

    def abandon(self) -> None:
        """Dissolve the group: what has come back so far goes through the model now, what comes later will then."""
        group, self._group = self._group, None
        if group is None:
            return
        scaler, optimizers = self._agent.live.scaler, self._agent.live.every_optimizer()
        if scaler is None or self._agent.in_backward:
            group.dissolve()
            return
        scaler.before_backward(optimizers)  # the group's gradients are of scaled losses, and this is no backward of the job's
        group.dissolve()
        scaler.after_backward(optimizers)

    def _backward(self, tensors: list[Any], gradients: list[Any], retain_graph: bool) -> None:
        original = self._agent.patches["autograd.backward"].original  # torch's own: this is no backward of the job's
        original(tensors, gradients, retain_graph=retain_graph)
