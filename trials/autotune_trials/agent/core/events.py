"""The events of the training loop, and the listeners that receive them.

    job       next(loader)       model(x)         loss.backward()       optimizer.step()
    events    went_on            went_on          went_on               step_started
              batch_requested    module_called    backward_started      step_ended
              batch_given        evaluated        backward_arguments    iteration_ending
              epoch_ended                         backward_ended        iteration_ended

Those that happen only occasionally are described in :class:`Listener`.

A listener overrides the methods of the events it needs; the other events cost nothing. Listeners
are called in the order they were added (loss scaling comes first). An exception in one stops the
agent. They are called in three ways: by TrainingLoop.tell, with the event's name, where it is rare;
by LoaderHooks.tell, for events of the DataLoader; and in place, ``for hear in events.…``, in hot
paths, which saves a call, and where they return something.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader

Context = AbstractContextManager[None]


class GivenBatch:  # a class with slots: made for every batch
    """A batch that the job receives.

    Attributes:
        wait_s: what the job waited for it.
        turnover_s: for the first batch of a later epoch, all the time lost at the epoch boundary;
            ``wait_s`` is then 0.
    """

    __slots__ = ("batch", "loader", "samples", "turnover_s", "wait_s")

    def __init__(
        self,
        loader: TrackedLoader,
        batch: Any,
        samples: float,
        wait_s: float,
        turnover_s: float | None = None,
    ) -> None:
        self.loader, self.batch, self.samples = loader, batch, samples
        self.wait_s, self.turnover_s = wait_s, turnover_s


class Listener:
    """Receives the events of the training loop."""

    def device_found(self, device: Any) -> None:
        """The job trains on ``device``, a torch.device; called again if a GPU is found after a
        CPU."""

    def loader_built(self, loader: Any, frame: FrameType) -> None:
        """A DataLoader has been built, called from ``frame``."""

    def optimizer_built(self, optimizer: Any, frame: FrameType, own_rates: bool) -> None:
        """An optimizer has been built, called from ``frame``; ``own_rates``: with a parameter group
        that states a learning rate.
        """

    def went_on(self) -> None:
        """The job asks for a batch, calls an entry module, begins a backward or ends: any change it
        made to its parameters since the last backward is complete."""

    def batch_requested(self, loader: TrackedLoader) -> None:
        """The job asks for the next batch."""

    def batch_given(self, given: GivenBatch) -> None:
        """The job receives a batch."""

    def epoch_started(self, loader: TrackedLoader) -> None:
        """The job begins a pass over ``loader``."""

    def epoch_ended(self, loader: TrackedLoader) -> None:
        """``loader`` is exhausted."""

    def iterator_dropped(self, loader: TrackedLoader) -> None:
        """The job dropped the iterator that gave the latest batch: its loop has ended, perhaps by
        ``return`` or an exception."""

    def workers_ending(self, loader: TrackedLoader) -> None:
        """The job dropped an iterator of ``loader`` before its end; its workers now shut down."""

    def workers_ended(self, loader: TrackedLoader) -> None:
        """Those workers have shut down."""

    def module_called(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Context | None:
        """Training calls an entry module. May return a context that the call must run in."""

    def evaluated(self, entry: Entry, args: tuple[Any, ...]) -> Context | None:
        """An entry module is called in evaluation, or without gradients. May return a context that
        the call must run in."""

    def other_evaluated(self) -> None:
        """The same for a module that is not an entry, while modules are being discovered."""

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        """``backward`` is called on ``tensors`` (one or several) with ``gradients`` for them or
        None."""

    def backward_arguments(self, tensors: Any, gradients: Any) -> tuple[Any, Any]:
        """Returns the arguments to call backward with instead."""
        return tensors, gradients

    def backward_ended(self) -> None:
        """Backward has ended."""

    def backward_failed(self) -> None:
        """Backward has raised an error, which the job may survive."""

    def stepping_changed(self, optimizer: Any) -> None:
        """``optimizer.step()`` is about to start, and another optimizer has stepped last, or
        none."""

    def step_started(self, optimizer: Any) -> None:
        """``optimizer.step()`` is called."""

    def closure_called(self, optimizer: Any) -> None:
        """The step has called the closure it was given."""

    def step_failed(self, optimizer: Any) -> None:
        """The closure has raised an error: the step ends with it, without ``step_ended``."""

    def step_ended(self, optimizer: Any, ends_iteration: bool) -> None:
        """The optimizer has stepped. ``ends_iteration``: the iteration ends with this step."""

    def manual_step(self, loss: Any) -> None:
        """``autotune.step(loss)`` is called; the iteration ends."""

    def started_over(self) -> None:
        """Iterations so far were miscounted, and all belong to the first one: the job ends its
        iterations in another way (``LoopState.ends_with``), or its optimizers take longer turns
        than it seemed."""

    def iteration_ending(self, iteration: Iteration, samples: float | None) -> None:
        """The iteration has ended: fill in what you know about it. ``samples``: the sample count,
        if the job reports one itself."""

    def iteration_ended(self, iteration: Iteration) -> None:
        """The iteration is counted and filled in. The job waits inside its optimizer hook."""

    def metric_reported(self, name: str, value: Any) -> None:
        """``autotune.metric(name, value)`` is called."""


EVENTS = tuple(name for name in vars(Listener) if not name.startswith("_"))


class Events:
    """For each event, the methods to call, looked up in advance."""

    device_found: tuple[Callable[[Any], None], ...]
    loader_built: tuple[Callable[[Any, FrameType], None], ...]
    optimizer_built: tuple[Callable[[Any, FrameType, bool], None], ...]
    went_on: tuple[Callable[[], None], ...]
    batch_requested: tuple[Callable[[TrackedLoader], None], ...]
    batch_given: tuple[Callable[[GivenBatch], None], ...]
    epoch_started: tuple[Callable[[TrackedLoader], None], ...]
    epoch_ended: tuple[Callable[[TrackedLoader], None], ...]
    iterator_dropped: tuple[Callable[[TrackedLoader], None], ...]
    workers_ending: tuple[Callable[[TrackedLoader], None], ...]
    workers_ended: tuple[Callable[[TrackedLoader], None], ...]
    module_called: tuple[Callable[[Entry, tuple[Any, ...], dict[str, Any]], Context | None], ...]
    evaluated: tuple[Callable[[Entry, tuple[Any, ...]], Context | None], ...]
    other_evaluated: tuple[Callable[[], None], ...]
    backward_started: tuple[Callable[[Any, Any], None], ...]
    backward_arguments: tuple[Callable[[Any, Any], tuple[Any, Any]], ...]
    backward_ended: tuple[Callable[[], None], ...]
    backward_failed: tuple[Callable[[], None], ...]
    stepping_changed: tuple[Callable[[Any], None], ...]
    step_started: tuple[Callable[[Any], None], ...]
    closure_called: tuple[Callable[[Any], None], ...]
    step_failed: tuple[Callable[[Any], None], ...]
    step_ended: tuple[Callable[[Any, bool], None], ...]
    manual_step: tuple[Callable[[Any], None], ...]
    started_over: tuple[Callable[[], None], ...]
    iteration_ending: tuple[Callable[[Iteration, float | None], None], ...]
    iteration_ended: tuple[Callable[[Iteration], None], ...]
    metric_reported: tuple[Callable[[str, Any], None], ...]

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._muted: set[tuple[Listener, str]] = set()
        self._renew()

    def listen(self, *listeners: Listener, ahead: bool = False) -> None:
        """Add listeners after the existing ones; ``ahead``: before them. Idempotent."""
        new = [each for each in listeners if each not in self._listeners]
        self._listeners = new + self._listeners if ahead else self._listeners + new
        self._renew()

    def forget(self, listener: Listener, *events: str) -> None:
        """Remove ``listener``, or only stop sending it these events. Idempotent."""
        if events:
            self._muted |= {(listener, event) for event in events}
        elif listener in self._listeners:
            self._listeners.remove(listener)
            self._muted = {(other, event) for other, event in self._muted if other is not listener}
        self._renew()

    def recall(self, listener: Listener, *events: str) -> None:
        """Send ``listener`` these events again."""
        self._muted -= {(listener, event) for event in events}
        self._renew()

    def close(self) -> None:
        self._listeners = []
        self._renew()

    def _renew(self) -> None:
        for event in EVENTS:
            silent = getattr(Listener, event)
            hearing = [each for each in self._listeners if getattr(type(each), event) is not silent]
            setattr(
                self,
                event,
                tuple(getattr(each, event) for each in hearing if (each, event) not in self._muted),
            )
