"""Where the time of an iteration goes.

    … optimizer │ other │ data      │ to_device │ forward │ backward │ other │ optimizer │ other …
                ▲       ▲ next()    ▲ batch     ▲         ▲ backward() ▲     ▲ pre hook  ▲ post hook: iteration ends

A clock is in exactly one phase at any time and :meth:`PhaseClock.switch` changes it, so phases
always add up. The extra phase AWAY holds time outside training iterations: evaluation, and the
turnover between epochs. The duration of a turnover comes from the loader's iterator, in CPU time;
on a device it has its own phase, TURNOVER, because a CPU wait costs nothing while the device is
still computing.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune_trials.measure.usage import Counts, counts
from autotune_trials.protocol.messages import PHASES

if TYPE_CHECKING:
    from autotune_trials.measure.nvtx import Ranges

DATA, TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
AWAY, TURNOVER = len(PHASES), len(PHASES) + 1
NAMES = (*PHASES, "away", "away")
UNSPENT = (0.0,) * len(NAMES)
COUNTED_EVERY_S = 2e-3  # reading the kernel's counters takes 5 µs


class Mark(NamedTuple):
    """A point in an iteration; the time after it can later be reassigned to AWAY."""

    spent: list[float]  # the clock's list itself, which identifies the iteration
    before_s: tuple[float, ...]  # its values at that point
    switches: int  # switches of a device clock up to that point


class PhaseClock:
    """Measures wall time with ``perf_counter``. About 0.2 µs per switch.

    ``counted``: the process's kernel counters at the beginning and end of the last iteration cut;
    of short iterations only some are counted, with those before.
    """

    __slots__ = ("phase", "spent", "last_s", "ranges", "counted", "_counts", "_counted_s")

    def __init__(self) -> None:
        self.phase = OTHER
        self.spent = [*UNSPENT]
        self.ranges: Ranges | None = None  # draws the phases into a trace
        self.last_s = perf_counter()  # time of the last switch
        self._counts: Counts = counts()
        self._counted_s = self.last_s
        self.counted: tuple[Counts, Counts] = (self._counts, self._counts)

    def switch(self, phase: int) -> None:
        now = perf_counter()
        self.spent[self.phase] += now - self.last_s
        self.last_s = now
        self.phase = phase
        if self.ranges is not None:
            self.ranges.switch(NAMES[phase])

    def relabel(self, phase: int) -> None:
        """Assign the time since the last switch to ``phase`` after all."""
        self.phase = phase

    def leave_out(self, seconds: float) -> None:
        """Exclude ``seconds`` since the last switch, spent by the agent itself."""
        self.last_s += seconds

    def note_epoch_end(self) -> None:
        """The time since the last switch was spent waiting for the end of the epoch."""
        self.relabel(AWAY)

    def note_epoch_start(self) -> None:
        if self.phase == OTHER:  # the last one never reached its end: the job counts batches itself
            self.switch(AWAY)

    def note_workers_end(self) -> None:
        """The workers of an iterator are being shut down."""
        self.switch(AWAY)

    def note_first_batch(self) -> None:
        """The time since the last switch was spent waiting for the epoch's first batch."""
        self.relabel(AWAY)

    def mark(self) -> Mark:
        """Mark the switch just made, so that :meth:`take_back` can exclude the time after it."""
        return Mark(self.spent, tuple(self.spent), 0)

    def take_back(self, mark: Mark) -> None:
        """Reassign all time from ``mark`` to the last switch to AWAY. An iteration that has ended
        in between is not changed.
        """
        before_s = mark.before_s if mark.spent is self.spent else UNSPENT
        away_s = sum(self.spent) - sum(before_s)
        self.spent[:] = before_s
        self.spent[AWAY] += away_s

    def cut(self) -> tuple[list[float], list[float]]:
        """End the iteration.

        Returns:
            (seconds per phase as seen by the CPU, seconds per phase for the window). The second
            list may be filled in later, by :meth:`finish` at the latest.
        """
        self.switch(OTHER)
        if self.ranges is not None:
            self.ranges.end_iteration()
        now, spent = self._counts, self.spent
        if self.last_s - self._counted_s >= COUNTED_EVERY_S:
            now, self._counted_s = counts(), self.last_s
        self.counted, self._counts, self.spent = (self._counts, now), now, [*UNSPENT]
        return spent, spent

    def resume(self) -> None:
        """Start the iteration now, discarding the time since the last cut: the agent spent it."""
        self._counts = counts()
        self.last_s = self._counted_s = perf_counter()
        self.spent = [*UNSPENT]
        self.phase = OTHER

    def finish(self) -> None:
        """Finalise every list returned by :meth:`cut`."""


class StillClock(PhaseClock):
    """For a job that is not measured: tracks the phase, but no time."""

    __slots__ = ()

    def switch(self, phase: int) -> None:
        self.phase = phase


class DeviceClock(PhaseClock):
    """Measures phases on the CUDA stream that backward runs on, with an event at each switch.

    Events cost about 2 µs each and no synchronization; they are read long after they have
    completed, the remaining ones in :meth:`finish`. A CPU wait while the device is busy rightly
    takes no time here. A copy on another stream (a prefetcher) counts where the compute stream
    waits for it.
    """

    __slots__ = """
        _torch _device _stream _pending _free _event _device_spent _limit _switches _own_s
    """.split()

    def __init__(self, torch: Any, device: Any) -> None:
        """``device``: the torch.device used for training, with its index."""
        super().__init__()
        self._torch, self._device = torch, device
        self._stream = torch.cuda.current_stream(device)
        # (begin, end, phase, list it is added to, seconds of it to exclude)
        self._pending: deque[tuple[Any, Any, int, list[float], float]] = deque()
        self._free: list[Any] = []
        self._device_spent = [*UNSPENT]
        self._limit = 512
        self._switches = 0
        self._own_s = 0.0  # time spent by the agent since the last switch
        self._event = self._record()

    def switch(self, phase: int) -> None:
        if phase == BACKWARD:  # a job that warms up on one stream may train on another
            self._stream = self._torch.cuda.current_stream(self._device)
        event = self._record()
        if not self._own_s and self._goes_on_away():
            begin, between, *rest = self._pending.pop()
            self._pending.append((begin, event, *rest))
            self._free.append(between)
        else:
            self._pending.append((self._event, event, self.phase, self._device_spent, self._own_s))
            self._switches += 1
        self._event, self._own_s = event, 0.0
        super().switch(phase)

    def _goes_on_away(self) -> bool:
        """Whether the interval that ends continues the last one: a long evaluation would hold as
        many events as it has batches.
        """
        if self.phase != AWAY or not self._pending:
            return False
        _, end, phase, spent, own_s = self._pending[-1]
        return end is self._event and phase == AWAY and spent is self._device_spent and not own_s

    def leave_out(self, seconds: float) -> None:
        super().leave_out(seconds)
        self._own_s += seconds

    def note_epoch_end(self) -> None:
        self.relabel(TURNOVER)
        self.switch(AWAY)  # until the next epoch starts the job may do anything

    def note_epoch_start(self) -> None:
        if self.phase in (AWAY, OTHER):
            self.switch(TURNOVER)

    def note_workers_end(self) -> None:
        self.switch(TURNOVER)

    def note_first_batch(self) -> None:
        self.relabel(TURNOVER)

    def mark(self) -> Mark:
        return super().mark()._replace(switches=self._switches)

    def take_back(self, mark: Mark) -> None:
        super().take_back(mark)
        for back in range(1, min(self._switches - mark.switches, len(self._pending)) + 1):
            begin, end, _, spent, own_s = self._pending[-back]
            if spent is not self._device_spent:
                return
            self._pending[-back] = (begin, end, AWAY, spent, own_s)

    def cut(self) -> tuple[list[float], list[float]]:
        wall, _ = super().cut()
        spent, self._device_spent = self._device_spent, [*UNSPENT]
        if len(self._pending) > self._limit:
            began_s = perf_counter()
            self._read(wait=False)
            self.leave_out(perf_counter() - began_s)
            # do not check a long queue in every iteration
            self._limit = max(512, 2 * len(self._pending))
        return wall, spent

    def resume(self) -> None:
        self._torch.cuda.synchronize(self._device)
        self._read(wait=True)
        self._device_spent, self._own_s = [*UNSPENT], 0.0
        self._event = self._record()
        super().resume()

    def finish(self) -> None:
        self._torch.cuda.synchronize(self._device)
        self._read(wait=True)

    def _record(self) -> Any:
        event = self._free.pop() if self._free else self._torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _read(self, wait: bool) -> None:
        while self._pending:
            begin, end, phase, spent, own_s = self._pending[0]
            # the events may be on two streams, of which either may be ahead
            if not wait and not (begin.query() and end.query()):
                return
            seconds = begin.elapsed_time(end) / 1e3
            # a device that was still busy has waited for less than the agent's own time
            spent[phase] += max(0.0, seconds - own_s) if own_s else seconds
            self._pending.popleft()
            self._free.append(begin)  # ``end`` is the next interval's begin
