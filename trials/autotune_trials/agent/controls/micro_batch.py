"""Batches that the model computes in portions; everything else stays as the job does it.

    job      next(loader) ── model(x) ── loss.backward() ── … ── optimizer.step()
    here              model │ x[:8] │ x[8:16] │ x[16:24] │ …  one result, of the whole batch

The job's loop sees the batches, losses, backward calls and steps it would see without: the
optimizer's batch, clipping, schedules, averages of weights and step counts are not touched,
whatever they are. Gradients are the same sums, in another order. The model must treat the samples
of a batch one by one: see :mod:`.separability`.

The other way to keep the optimizer's batch, smaller batches from the loader and steps withheld, was
rejected: the job would count, log, clip and end by iterations that are none, and no one outside can
see whether it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.controls.entry_modules import SLOT
from autotune_trials.agent.controls.sample_slices import (
    Call,
    Inseparable,
    cut,
    join,
    leaves_of,
    lengths_of,
    rows_of,
)
from autotune_trials.agent.controls.separability import adds_losses, why_inseparable
from autotune_trials.measure.clock import AWAY

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.live_job import LiveJobControl

FIRST_CALLS = 1  # left as they are: a model's first pass builds what it keeps (caches, lazy layers)


class MicroBatch:
    """At most ``size`` samples a pass of the model."""

    def __init__(self, live: LiveJobControl, size: int) -> None:
        self._torch, self._live, self.size = live.torch, live, size
        self._split = 0  # batches computed in portions
        self._refusal = ""  # why batches are left whole from now on
        self._calls: Counter[int] = Counter()  # by id of entry
        # (id of entry, samples of the whole, of a part, what is cut) -> why not
        self._known: dict[tuple[Any, ...], str] = {}
        self._looked_back: set[int] = set()  # ids of entries
        self._in_model = False

    def run(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``entry`` returns for this call. Raises what the model raises."""
        self._calls[id(entry)] += 1
        try:
            return self._run(entry, (args, kwargs))
        except Exception:
            if self._in_model:
                self._in_model = False
                raise
            self._live.loop.fail("micro_batch_size")
        return entry.one_pass(args, kwargs)

    def _run(self, entry: Entry, call: Call) -> Any:
        rows = rows_of(self._torch, call) or 0
        if not rows:
            self._refuse(
                "what the model is called with holds no tensor, and cannot be cut into samples"
            )
        if self._calls[id(entry)] <= FIRST_CALLS or self._refusal or rows <= self.size:
            return self._one_pass(entry, call)
        parts, lengths = cut(self._torch, call, rows, self.size), lengths_of(rows, self.size)
        if not self._allows(entry, call, parts, lengths):
            return self._one_pass(entry, call)
        try:
            result = self._in_portions(entry, call, parts, lengths)
            self._look_back(entry, result)
        except Inseparable as reason:
            self._refuse(str(reason))
            return self._one_pass(entry, call)
        self._split += 1
        return result

    def _one_pass(self, entry: Entry, call: Call) -> Any:
        """The model itself; what it raises is the job's."""
        self._in_model = True
        result = entry.one_pass(*call)
        self._in_model = False
        return result

    def _allows(self, entry: Entry, whole: Call, parts: list[Call], lengths: list[int]) -> bool:
        """Whether the model gives the same for ``whole`` as for ``parts``; asked of the model once
        a size, and once for each choice of arguments that are cut: a mask is, where it happens to
        be as long as the batch."""
        uncut = tuple(a is b for a, b in zip(leaves_of(whole), leaves_of(parts[0]), strict=True))
        key = (id(entry), sum(lengths), lengths[0], uncut)
        if key not in self._known:
            if self._live.state.in_backward:
                # a checkpoint computes again what it computed before this could be asked
                return False
            clock = self._live.timer.clock
            phase = clock.phase
            clock.switch(AWAY)
            self._in_model = True  # what it raises is out-of-memory, and the model's
            self._known[key] = why_inseparable(
                self._torch, own_module(entry.module), whole, parts, lengths
            )
            self._in_model = False
            clock.switch(phase)
        if self._known[key]:
            self._refuse(self._known[key])
        return not self._known[key]

    def _look_back(self, entry: Entry, result: Any) -> None:
        """Of the first result of ``entry`` in portions, how backward will go. Raises Inseparable."""
        if id(entry) not in self._looked_back:
            self._looked_back.add(id(entry))
            if reason := adds_losses(self._torch, result):
                raise Inseparable(reason)

    def _in_portions(self, entry: Entry, call: Call, parts: list[Call], lengths: list[int]) -> Any:
        module = own_module(entry.module)
        if module is entry.module:
            return join(self._torch, [self._one_pass(entry, part) for part in parts], lengths)
        # one pass of the wrapper, which prepares one exchange of gradients
        with _replaced(module, self._portioned(module)):
            return self._one_pass(entry, call)

    def _portioned(self, module: Any) -> Any:
        def call_in_portions(*args: Any, **kwargs: Any) -> Any:
            call: Call = (args, kwargs)
            rows = rows_of(self._torch, call) or 0
            results = [
                module._call_impl(*part[0], **part[1])
                for part in cut(self._torch, call, rows, self.size)
            ]
            return join(self._torch, results, lengths_of(rows, self.size))

        return call_in_portions

    def _refuse(self, reason: str) -> None:
        """From now on every batch is left whole."""
        self._refusal = self._refusal or reason

    def effect(self) -> str | None:
        """Why nothing changed, or None."""
        return self._refusal or (
            None if self._split else f"no call of the model had more than {self.size} samples"
        )


class MicroBatchControl(Control):
    """Values: the most samples of a pass; None leaves batches whole."""

    name = "micro_batch"

    def set(self, value: Any) -> None:
        live = self.live
        if value != (live.micro.size if live.micro is not None else None):
            live.micro = MicroBatch(live, value) if value is not None else None

    def effect(self) -> str | None:
        return self.live.micro.effect() if self.live.micro is not None else None


def own_module(module: Any) -> Any:
    """The job's own module inside DistributedDataParallel, which counts passes and exchanges
    gradients for each.
    """
    return module.module if type(module).__name__ == "DistributedDataParallel" else module


@contextmanager
def _replaced(module: Any, call: Any) -> Iterator[None]:
    """Calls of ``module`` go to ``call``."""
    attributes = vars(module)
    present = attributes.get(SLOT)
    attributes[SLOT] = call
    try:
        yield
    finally:
        if present is None:
            del attributes[SLOT]
        else:
            attributes[SLOT] = present
