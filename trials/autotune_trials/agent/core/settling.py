"""When a block has settled, and when the loader's queue must be emptied first.

While the job is paused (a compile, a cuDNN search, an evaluation, the wait for a plan), its data
loader workers keep filling their queue. An input-bound job then runs faster than it can be fed
until the queue is used up. If workers supply 80% of what it consumes, that takes five times as
many iterations as the queue holds batches. So the queue is emptied:

    stall │ 4 iterations: it is over │ drain: the queue is discarded │ 3 to recover │ times level off │ measured
"""

from __future__ import annotations

import math
from statistics import median

from autotune_trials.protocol.messages import Block

STALL = 5.0  # an iteration this many medians long is a stall
AFTER_DRAIN = 3  # iterations after a drain that do not count, besides the one it happens in
GROUP = 4  # times have levelled off when the medians of the last two groups of 4 …
LEVEL = 0.10  # … agree within 10%
# share of a block's max_seconds that settling may take, so that time is left to measure
SETTLE_SHARE = 0.6
DRAIN_SHARE = 0.3  # share of a block's max_seconds that a drain may take


class Settling:
    """Decides, from iteration times, when a block has settled."""

    def __init__(self, block: Block, queue: int, paused_s: float = 0.0) -> None:
        """``queue``: batches the loader's workers keep ready; ``paused_s``: how long the job was
        paused before the block.
        """
        self._block, self.queue = block, queue
        self.count = 0  # iterations so far
        self.settled = False
        self._times: list[float] = []  # of the iterations that count
        self._level_from = 0  # times before the last drain are not representative
        self._paused_s = paused_s  # pauses outside iterations, since the last drain
        self._drained = False  # at least once
        self._leave_out = 0

    def add(self, wall_s: float) -> None:
        """An iteration has ended."""
        self.count += 1
        if self._leave_out:
            self._leave_out -= 1
        else:
            self._times.append(wall_s)

    def pause(self) -> None:
        """The job has finished something else (an evaluation) that took long enough to fill the
        queue.
        """
        self._paused_s = math.inf

    @property
    def draining(self) -> bool:
        """Whether a drain, or one of the iterations after it, is under way."""
        return self._leave_out > 0

    def drain_due(self) -> bool:
        """Whether the queue must be emptied now: a stall is over, and it lasted long enough for a
        batch to pile up.
        """
        if not self.queue or self.draining:
            return False
        calm = self._since_stall()
        if self._paused_s == math.inf or len(calm) < GROUP:
            return self._paused_s == math.inf
        usual = median(calm)
        stalls = sum(t - usual for t in self._times[self._level_from :] if t > STALL * usual)
        return self._paused_s + stalls > usual

    def drained(self) -> None:
        """The queue will be emptied in the next iteration."""
        # times from before an evaluation are as valid as those after it
        if not (self._drained and self._paused_s == math.inf):
            self._level_from = len(self._times)
        self._drained, self._paused_s, self._leave_out = True, 0.0, 1 + AFTER_DRAIN

    def done(self, spent_s: float) -> bool:
        """Whether settling ends now; ``spent_s``: seconds since the block began. Sets ``settled``:
        whether the block has really settled, rather than reached a limit.
        """
        self.settled = (
            self.count >= self._block.min_settle
            and not self.draining
            and (not self._block.level or self._levelled())
        )
        out_of_time = spent_s > SETTLE_SHARE * self._block.max_seconds and self.count >= min(
            2, self._block.max_settle
        )
        return self.settled or self.count >= self._block.max_settle or out_of_time

    def _since_stall(self) -> list[float]:
        times = self._times[self._level_from :]
        if not times:
            return []
        usual = median(self._times)
        stalls = [i for i, t in enumerate(times) if t > STALL * usual]
        return times[stalls[-1] + 1 :] if stalls else times

    def _levelled(self) -> bool:
        times = self._since_stall()
        if len(times) < 2 * GROUP:
            return False
        last, before = median(times[-GROUP:]), median(times[-2 * GROUP : -GROUP])
        return abs(last - before) <= LEVEL * before


class LockstepSettling(Settling):
    """For several ranks: all count the same, or they would change knobs at different steps.

    Nothing local to one rank decides, neither its times nor its queue, since perhaps only the first
    rank reads data.
    """

    def drain_due(self) -> bool:
        return self.count == self._block.min_settle and not self.draining

    def done(self, spent_s: float) -> bool:
        self.settled = self.count >= self._block.min_settle + 1 + AFTER_DRAIN + GROUP
        return self.settled or self.count >= self._block.max_settle
