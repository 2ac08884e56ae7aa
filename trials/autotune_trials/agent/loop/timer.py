"""The session's clock: which one is in use, and which time belongs to no iteration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.core.events import Events, Listener
from autotune_trials.measure.clock import (
    FORWARD,
    OTHER,
    TO_DEVICE,
    DeviceClock,
    PhaseClock,
    StillClock,
)

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.core.loop_state import LoopState
    from autotune_trials.measure.nvtx import Ranges


class RangeStart(Listener):
    """Begins the range of the next iteration after all other listeners: what the agent does between
    two iterations belongs to neither."""

    def __init__(self, timer: Timer, state: LoopState) -> None:
        self._timer, self._state = timer, state

    def iteration_ended(self, iteration: Iteration) -> None:
        if self._timer.ranges is not None and not self._state.stopped:
            self._timer.ranges.begin_iteration()


class Timer(Listener):
    """Holds the clock, which is replaced once the job is known to train on a GPU."""

    def __init__(self, torch: Any, state: LoopState, events: Events, measures: bool) -> None:
        self._torch, self._state, self._events, self._measures = torch, state, events, measures
        self.clock: PhaseClock = PhaseClock() if measures else StillClock()
        self._begun = False
        self._range_start = RangeStart(self, state)

    def device_found(self, device: Any) -> None:
        if device.type == "cuda" and self._measures:
            ranges, self.clock = self.clock.ranges, DeviceClock(self._torch, device)
            self.clock.ranges = ranges

    def begin(self) -> None:
        """Training begins: imports and model construction are not part of the first iteration.
        Idempotent."""
        if not self._begun:
            self._begun = True
            self.clock.resume()
            if self.clock.ranges is not None:
                self.clock.ranges.begin_iteration()

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Time spent inside is the agent's and belongs to no iteration."""
        try:
            yield
        finally:
            self.clock.resume()

    def finish(self) -> None:
        """Wait for the device: the times that the clock has given out are then final."""
        self.clock.finish()

    # ------------------------------------------------------------------ copies to the device

    def begin_transfer(self) -> int | None:
        """A copy to the device begins; returns the phase to go back to, or None if another thread
        than the one that trains makes the copy."""
        phase = self.clock.phase
        if get_ident() != self._state.thread:
            return None
        if phase in (OTHER, FORWARD) and not self._state.capturing:
            self.clock.switch(TO_DEVICE)
        return phase

    def end_transfer(self, phase: int) -> None:
        if self.clock.phase == TO_DEVICE:
            self.clock.switch(phase)

    # ------------------------------------------------------------------ a profiler's timeline

    @property
    def ranges(self) -> Ranges | None:
        return self.clock.ranges

    def draw(self, ranges: Ranges | None) -> None:
        """Draw phases and iterations into ``ranges`` from now on."""
        self.clock.ranges = ranges
        if ranges is not None:
            self._events.listen(self._range_start)

    def close_ranges(self) -> None:
        """Close what is open in the timeline and stop drawing."""
        self._events.forget(self._range_start)
        ranges, self.clock.ranges = self.clock.ranges, None
        if ranges is not None:
            ranges.end_iteration()
