"""Where the time of an iteration goes.

    … optimizer │ other │ data      │ to_device │ forward │ backward │ other │ optimizer │ other …
                ▲       ▲ next()    ▲ batch     ▲         ▲ backward() ▲     ▲ pre hook  ▲ post hook: iteration ends

A clock is in exactly one phase at any time; :meth:`PhaseClock.switch` moves it on, so phases always
add up. The extra
phase AWAY takes what is no part of training iterations: evaluation, and the turnover between
epochs. How long a turnover takes is told by the loader's iterator, in the CPU's time; on a device
it has a phase of its own, TURNOVER, because what the CPU waits for while the device still computes
costs nothing.
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


class Mark(NamedTuple):
    """A point in an iteration, which what follows may be counted from anew."""

    spent: list[float]  # the clock's own list, which tells the iteration
    before_s: tuple[float, ...]  # what stood in it
    switches: int  # of a device clock, until then


class PhaseClock:
    """Wall time by ``perf_counter``. About 0.2 µs a switch.

    ``counted``: what the kernel had counted for the process when the iteration cut last began, and
    when it ended.
    """

    __slots__ = ("phase", "spent", "last_s", "ranges", "counted", "_counts")

    def __init__(self) -> None:
        self.phase = OTHER
        self.spent = [0.0] * len(NAMES)
        self.ranges: Ranges | None = None  # what draws phases into a trace
        self.last_s = perf_counter()  # of the last switch
        self._counts: Counts = counts()
        self.counted: tuple[Counts, Counts] = (self._counts, self._counts)

    def switch(self, phase: int) -> None:
        """The current phase ends, ``phase`` begins."""
        now = perf_counter()
        self.spent[self.phase] += now - self.last_s
        self.last_s = now
        self.phase = phase
        if self.ranges is not None:
            self.ranges.switch(NAMES[phase])

    def relabel(self, phase: int) -> None:
        """The stretch since the last switch was ``phase``, as it turns out."""
        self.phase = phase

    def leave_out(self, seconds: float) -> None:
        """So much of the time since the last switch was the agent's own doing."""
        self.last_s += seconds

    def note_epoch_end(self) -> None:
        """Since the last switch the job has waited for the end of its epoch."""
        self.relabel(AWAY)

    def note_epoch_start(self) -> None:
        """The job begins another epoch."""
        if self.phase == OTHER:  # without having come to the last one's end: it counts its batches
            self.switch(AWAY)

    def note_workers_end(self) -> None:
        """The workers of an iterator are ended."""
        self.switch(AWAY)

    def note_first_batch(self) -> None:
        """Since the last switch it has waited for the first batch of that."""
        self.relabel(AWAY)

    def mark(self) -> Mark:
        """A stretch begins with the switch just made that may turn out to be none of training: see
        :meth:`take_back`.
        """
        return Mark(self.spent, tuple(self.spent), 0)

    def take_back(self, mark: Mark) -> None:
        """From ``mark`` to the last switch all was AWAY, as it turns out. An iteration that has
        ended meanwhile stays as it is.
        """
        before_s = mark.before_s if mark.spent is self.spent else (0.0,) * len(self.spent)
        away_s = sum(self.spent) - sum(before_s)
        self.spent[:] = before_s
        self.spent[AWAY] += away_s

    def cut(self) -> tuple[list[float], list[float]]:
        """The iteration ends here.

        Returns:
            (seconds a phase as seen by the CPU, seconds a phase as they will stand in the window).
            The second list may
            be filled in later: by :meth:`finish` at the latest.
        """
        self.switch(OTHER)
        if self.ranges is not None:
            self.ranges.end_iteration()
        now, spent = counts(), self.spent
        self.counted, self._counts, self.spent = (self._counts, now), now, [*UNSPENT]
        return spent, spent

    def resume(self) -> None:
        """What happened since the last cut was the agent's own doing: the iteration begins now."""
        self._counts = counts()
        self.last_s = perf_counter()
        self.spent = [0.0] * len(NAMES)
        self.phase = OTHER

    def finish(self) -> None:
        """Every list given out by :meth:`cut` is final after this."""


class StillClock(PhaseClock):
    """Of a job that is not measured: it knows its phase, and no time."""

    __slots__ = ()

    def switch(self, phase: int) -> None:
        self.phase = phase


class DeviceClock(PhaseClock):
    """Phases on the timeline of the CUDA stream that backward runs on, from events recorded at each
    switch.

    Events cost about 2 µs each and no synchronisation; they are read when they have long passed,
    and the rest at :meth:`finish`. What the CPU waits for while the device still works shows up as
    no time at all, as it should. A copy on a stream of its own (a prefetcher) counts where the
    compute stream waits for it.
    """

    __slots__ = """
        _torch _device _stream _pending _free _event _device_spent _limit _switches _own_s
    """.split()

    def __init__(self, torch: Any, device: Any) -> None:
        """``device``: the torch.device trained on, with its index."""
        super().__init__()
        self._torch, self._device = torch, device
        self._stream = torch.cuda.current_stream(device)
        # (begin, end, phase, where it counts, seconds of it to be left out)
        self._pending: deque[tuple[Any, Any, int, list[float], float]] = deque()
        self._free: list[Any] = []
        self._device_spent = [0.0] * len(NAMES)
        self._limit = 512
        self._switches = 0
        self._own_s = 0.0  # the agent's, since the last switch
        self._event = self._record()

    def switch(self, phase: int) -> None:
        if phase == BACKWARD:  # a job that warms up on one stream may train on another
            self._stream = self._torch.cuda.current_stream(self._device)
        event = self._record()
        self._pending.append((self._event, event, self.phase, self._device_spent, self._own_s))
        self._event, self._own_s = event, 0.0
        self._switches += 1
        super().switch(phase)

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
        spent, self._device_spent = self._device_spent, [0.0] * len(NAMES)
        if len(self._pending) > self._limit:
            self._read(wait=False)
            # a long queue is not looked through every iteration
            self._limit = max(512, 2 * len(self._pending))
        return wall, spent

    def resume(self) -> None:
        self._torch.cuda.synchronize(self._device)
        self._read(wait=True)
        self._device_spent, self._own_s = [0.0] * len(NAMES), 0.0
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
            # of two streams either may be ahead
            if not wait and not (begin.query() and end.query()):
                return
            seconds = begin.elapsed_time(end) / 1e3
            # a device that was still at work has waited for less than the agent took
            spent[phase] += max(0.0, seconds - own_s) if own_s else seconds
            self._pending.popleft()
            self._free.append(begin)  # ``end`` is the next interval's begin
