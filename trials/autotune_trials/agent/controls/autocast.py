"""Autocast over the forward region; for float16 the loss is also scaled (loss_scaler.py).

    batch │ entry module called ─ enter │ forward, loss │ backward() ─ leave │ optimizer
                                          autocast on

The region is entered at the first entry module of an iteration and left at backward, because it
must include the loss (as in the usual ``with autocast(): loss = criterion(model(x), y)``). Inside
an autocast region of the job's own, ours covers only the module call: regions must nest.

An iteration of ours may end in the middle of one of the job's (a GAN steps its critic, then feeds
the critic tensors that its generator made earlier). Autocast is therefore switched off where the
next batch is fetched. What the job still holds in the old dtype, such as a recurrent state, is cast
where it enters a module.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.controls.loss_scaler import LossScaler, LossScaling

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.events import Context, GivenBatch
    from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader


class AutocastRegion:
    """The one autocast region the agent may be inside."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.dtype: Any = None
        self.entering = False  # the autocast being entered is ours
        self.ending = False  # switch off when the next batch is fetched
        self.due = False  # it is being fetched
        self.inside: Any = None  # the region we are in
        self.overdue = False  # it was to be left at the step, and could not
        self.entered = 0  # regions entered so far
        self._thread = 0

    def set(self, dtype: Any, at_batch: bool = False) -> None:
        """Use ``dtype`` (a torch.dtype; None: no autocast) from the next iteration on.
        ``at_batch``: switch off only where the next batch is fetched.
        """
        self.leave()
        self.ending = dtype is None and self.dtype is not None and at_batch
        self.due = False
        if not self.ending:
            self.dtype = dtype

    def end(self) -> None:
        """Finish switching off, where the next batch is fetched."""
        self.leave()
        self.ending = self.due = False
        self.dtype = None

    def carry_on(self, device: str, inputs: Iterable[Any]) -> Context | None:
        """A context for a call in evaluation or backward whose inputs the region made, else None.
        Weights are cast for that call alone: a cast made without gradients must not serve a call
        with them.
        """
        torch = self._torch
        if self.dtype is None or not any(
            getattr(value, "dtype", None) is self.dtype for value in inputs
        ):
            return None
        if self.inside is None and torch.is_autocast_enabled(device):
            return None  # the job's own region, or a checkpoint's
        return self._confined(torch.autocast(device, dtype=self.dtype, cache_enabled=False))

    def suspended(self, device: str) -> Context | None:
        """A context for a call without autocast in the middle of the region; None inside a region
        of the job's own.
        """
        if self._nesting() != 1:
            return None
        return self._confined(self._torch.autocast(device, enabled=False))

    def enter(
        self, device: str, keep_weights: bool = True, confined: bool = False
    ) -> Context | None:
        """Enter the region, unless already inside. ``keep_weights``: reuse cast weights for the
        rest of the region; casts made without gradients must not be reused. ``confined``: for the
        module call only.

        Returns a context manager if the region must be confined to the module call, else None.
        """
        torch = self._torch
        if self.dtype is None or self.inside is not None or torch.is_autocast_enabled(device):
            return None
        context = torch.autocast(device, dtype=self.dtype, cache_enabled=keep_weights)
        self.entered += 1
        # nested: in a region of the job's own, which disables autocast
        if confined or self._nesting() > 0:
            return self._confined(context)
        self.entering = True
        try:
            context.__enter__()
        finally:
            self.entering = False
        self.inside, self._thread = context, threading.get_ident()
        return None

    def leave(self) -> None:
        """Leave the region if inside; deferred while the job has a region of its own open within
        it.
        """
        if self.inside is None or self._thread != threading.get_ident() or self._nesting() != 1:
            return
        context, self.inside = self.inside, None
        self.overdue = False
        context.__exit__(None, None, None)

    @contextmanager
    def _confined(self, context: Any) -> Iterator[None]:
        self.entering = True
        try:
            context.__enter__()
        finally:
            self.entering = False
        try:
            yield
        finally:
            context.__exit__(None, None, None)
            # Only the outermost exit drops the cached casts, and that one is the job's: it may come
            # after the next step.
            self._torch.clear_autocast_cache()

    def _nesting(self) -> int:
        depth = self._torch.autocast_increment_nesting() - 1
        self._torch.autocast_decrement_nesting()
        return int(depth)


class AutocastControl(Control):
    """Enters and leaves the region at the loop's events. Values: "bfloat16", "float16", None."""

    name = "autocast"

    def __init__(self, live: LiveJobControl) -> None:
        super().__init__(live)
        self.region = AutocastRegion(live.torch)
        self._set_at = 0  # iterations completed when it was last set
        self._entered = 0  # regions entered when the value was last changed
        # float16 only; kept, with its scale, when float16 is switched off
        self.scaling: LossScaling | None = None

    @property
    def scale_used(self) -> float | None:
        """The current scale of the agent's own scaler; None if it was never in use."""
        return self.scaling.scaler.scale if self.scaling is not None else None

    def set(self, value: Any) -> None:
        live = self.live
        if value == "float16" and not live.every_optimizer():
            raise RuntimeError(
                "float16 needs a torch.optim optimizer, so that steps can be skipped when gradients"
                " overflow"
            )
        # when stopping, there may be no loaders: the agent may have failed to install
        loader = None if live.state.stopped else live.loaders.choice.loader
        # one that is read by another thread asks for batches at any time
        at_batch = loader is not None and not loader.read_aside
        dtype = None if value is None else getattr(self.torch, value)
        if dtype is not self.region.dtype:
            self._entered = self.region.entered
            for entry in live.entries:
                entry.fade(self.region.dtype)
        self.region.set(dtype, at_batch)
        self._set_at = live.state.iterations
        self.listen(self.region.dtype is not None)
        if value == "float16":
            self.scaling = self.scaling or LossScaling(
                live, LossScaler(self.torch, live.config.loss_scale)
            )
            # ahead of the others, so that they see unscaled gradients
            live.events.listen(self.scaling, ahead=True)
        elif self.scaling is not None:
            live.events.forget(self.scaling)

    def effect(self) -> str | None:
        if self.region.dtype is None or self.region.entered > self._entered:
            return None
        return "no forward pass of the training was seen, so autocast was never switched on"

    # ------------------------------------------------------------------ events

    def batch_requested(self, loader: TrackedLoader) -> None:
        region = self.region
        if region.inside is not None:
            region.leave()
        if region.ending and not loader.is_other:
            region.due = True
            self._finish()

    def iterator_dropped(self, loader: TrackedLoader) -> None:
        self.region.leave()

    def _finish(self) -> None:
        """Finish switching off. Inside the region only the thread that trains can, once it has left."""
        region = self.region
        if region.inside is None:
            region.end()
            self.listen(False)

    def batch_given(self, given: GivenBatch) -> None:
        live, loader = self.live, given.loader
        if (
            live.state.iterations
            and self.region.dtype is not None
            and loader.training
            and not loader.read_aside  # autocast is per thread
            and not live.entries
        ):
            self.region.enter(live.device or "cpu")  # the job calls no module: start at the batch

    def module_called(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Context | None:
        region, state, device = self.region, self.live.state, self.live.device
        if not state.backwards and not self.live.every_optimizer():
            return None  # a constructor calls a part of its model, to learn a size
        if not state.iterations and state.seen_gradless and not region.entered:
            # This may be the second half of a computation whose first half ran without autocast:
            # start with the next iteration.
            return None
        # a checkpoint must be recomputed as in the forward; around that it restores the autocast
        # state itself
        if state.in_backward:
            part = entry.checkpointed or entry.in_region
            entered = region.enter(device, confined=self._elsewhere) if part else None
            return entered or region.carry_on(device, args)
        if region.overdue:
            region.leave()
            self.torch.clear_autocast_cache()  # if it cannot be left here, either
        inside = region.inside is not None
        confined = region.enter(device)
        entry.in_region = region.inside is not None or confined is not None
        if region.dtype is not None and (entry.rewritten() or state.took_gradients) and inside:
            # the job changed its weights between two calls (SAM, an inner loop of Reptile or MAML),
            # perhaps by ``p.data``, which counts no version: cast anew
            self.torch.clear_autocast_cache()
        state.took_gradients = False
        return confined

    def evaluated(self, entry: Entry, args: tuple[Any, ...]) -> Context | None:
        region, state, device = self.region, self.live.state, self.live.device
        carried = region.carry_on(device, args)
        if carried is not None:
            return carried
        part = state.caches_gradients or (entry.checkpointed and entry.called_gradless)
        if region.inside is not None and state.training_called and not part:
            return region.suspended(device)  # the loss of the training call is still to come
        region.leave()
        # the result goes into the loss: both halves must be computed alike
        if part and state.iterations:
            return region.enter(device, keep_weights=False, confined=self._elsewhere)
        return None

    @property
    def _elsewhere(self) -> bool:
        """Whether this is not the thread that trains, which alone can leave a region later: on CUDA
        a thread of torch's takes part in backward.
        """
        return threading.get_ident() != self.live.state.thread

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        region = self.region
        if region.inside is not None:
            region.leave()
        if region.due:
            self._finish()
        elif region.ending and self.live.state.iterations > self._set_at:
            region.set(None)  # a whole iteration without a batch: the job no longer fetches any

    def step_started(self, optimizer: Any) -> None:
        if self.region.inside is not None:
            self.region.leave()
            # still inside if backward and step are within a region of the job's own
            self.region.overdue = self.region.inside is not None
        if self.region.due:
            self._finish()

    def manual_step(self, loss: Any) -> None:
        self.region.leave()
