"""Actions due when the job reaches a point of its loop for the first time.

first batch, first backward      a marker for failure reports; knobs held on what exists by
                                 now; the clock starts
first step of each optimizer     knobs held on it
first iteration's end            a marker
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.events import Events, Listener
from autotune_trials.agent.core.loop_state import Ending

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.core.knob_applier import Knobs
    from autotune_trials.agent.core.loop_state import LoopState
    from autotune_trials.agent.dataloader.tracked import TrackedLoader
    from autotune_trials.agent.loop.timer import Timer


class FirstTimes(Listener):
    """Receives events before all other listeners except loss scaling."""

    def __init__(
        self,
        events: Events,
        state: LoopState,
        timer: Timer,
        knobs: Knobs,
        note_stepping: Callable[[Any], bool],
        learn_device: Callable[[Any], None],
    ) -> None:
        """``note_stepping``: returns whether an optimizer steps for the first time."""
        self._events, self._state, self._timer, self._knobs = events, state, timer, knobs
        self._note_stepping, self._learn_device = note_stepping, learn_device

    def batch_requested(self, loader: TrackedLoader) -> None:
        self._events.forget(self, "batch_requested")
        log.leave_marker("loader")
        self._knobs.hold(final=False)
        self._timer.begin()

    def module_called(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._events.forget(self, "module_called")
        self._timer.begin()

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        self._events.forget(self, "backward_started")
        log.leave_marker("backward")
        device = getattr(
            tensors[0] if isinstance(tensors, (list, tuple)) else tensors, "device", None
        )
        if device is not None:
            self._learn_device(device)
        self._knobs.hold(final=False)
        self._timer.begin()

    def stepping_changed(self, optimizer: Any) -> None:
        if self._note_stepping(optimizer):
            self._knobs.hold(final=True)

    def iteration_ending(self, iteration: Iteration, samples: float | None) -> None:
        self._events.forget(self, "iteration_ending")
        log.leave_marker("step")
        if self._state.ends_with is Ending.UPDATE:
            self._knobs.hold(final=True)

    def started_over(self) -> None:
        if self._state.ends_with is Ending.MARK:
            self._knobs.hold(final=True)
