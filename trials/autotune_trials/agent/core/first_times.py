"""Actions due when the job reaches a point of its loop for the first time.

first batch, first backward      a marker for failure reports; knobs held on what exists by
                                 now; the clock starts
first step of each optimizer     knobs held on it
first iteration's end            a marker
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.core.loop_state import Ending
from autotune_trials.agent.loop.autograd_graph import listed

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.core.knob_applier import Knobs
    from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader


class FirstTimes(Listener):
    """Receives events before all other listeners except loss scaling."""

    def __init__(self, live: LiveJobControl, knobs: Knobs) -> None:
        self._live, self._knobs = live, knobs

    def batch_requested(self, loader: TrackedLoader) -> None:
        self._live.events.forget(self, "batch_requested")
        log.leave_marker("loader")
        self._knobs.hold(final=False)
        self._live.timer.begin()

    def module_called(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._live.events.forget(self, "module_called")
        self._live.timer.begin()

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        self._live.events.forget(self, "backward_started")
        log.leave_marker("backward")
        device = getattr(listed(tensors)[0], "device", None)
        if device is not None:
            self._live.loop.learn_device(device)
        self._knobs.hold(final=False)
        self._live.timer.begin()

    def stepping_changed(self, optimizer: Any) -> None:
        if self._live.note_stepping(optimizer):
            self._knobs.hold(final=True)

    def iteration_ending(self, iteration: Iteration, samples: float | None) -> None:
        self._live.events.forget(self, "iteration_ending")
        log.leave_marker("step")
        if self._live.state.ends_with is Ending.UPDATE:
            self._knobs.hold(final=True)

    def started_over(self) -> None:
        if self._live.state.ends_with is Ending.MARK:
            self._knobs.hold(final=True)
