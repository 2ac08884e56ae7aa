"""When a block has settled, and when the loader's queue has to be emptied first.

While the job stands still (a compile, a cuDNN search, an evaluation, the wait for a plan) its
workers go on until their queue is full. From then on an input-bound job runs faster than it can be
fed, for as long as the queue lasts: filled at 80 % of what is consumed, five times as many
iterations as it holds batches. So it is emptied:

    stall │ 4 iterations: it is over │ drain: the queue is thrown away │ 3 to get going │ times level off │ measured
"""

from __future__ import annotations

import math
from statistics import median

from autotune_trials.protocol.messages import Block

STALL = 5.0  # an iteration this many medians long is a stall
AFTER_DRAIN = 3  # iterations after a drain that do not count, beside the one it happens in
GROUP = 4  # times have levelled off when the medians of the last two groups of 4 …
LEVEL = 0.10  # … agree within 10 %
# of a block's max_seconds that settling may take, so that something is left to measure
SETTLE_SHARE = 0.6
DRAIN_SHARE = 0.3  # of a block's max_seconds that a drain may take


class Settling:
    """Decides, from iteration times, when a block has settled."""

    def __init__(self, block: Block, queue: int, paused_s: float = 0.0) -> None:
        """``queue``: batches the loader's workers keep ready; ``paused_s``: the job stood still
        before the block.
        """
        self._block, self.queue = block, queue
        self.count = 0  # iterations so far
        self.settled = False
        self._times: list[float] = []  # of those that count
        self._level_from = 0  # times before the last drain say nothing of what comes
        self._paused_s = paused_s  # since the last drain, outside of iterations
        self._drained = False  # once at least
        self._leave_out = 0

    def add(self, wall_s: float) -> None:
        """An iteration has ended."""
        self.count += 1
        if self._leave_out:
            self._leave_out -= 1
        else:
            self._times.append(wall_s)

    def pause(self) -> None:
        """The job did something else for a while (an evaluation), which is over and was long enough
        to fill the queue.
        """
        self._paused_s = math.inf

    @property
    def drains(self) -> bool:
        """A drain is under way, or the iterations after it."""
        return self._leave_out > 0

    def drain_due(self) -> bool:
        """Whether the queue has to be emptied now: a stall is over that lasted long enough for a
        batch to pile up.
        """
        if not self.queue or self.drains:
            return False
        calm = self._since_stall()
        if self._paused_s == math.inf or len(calm) < GROUP:
            return self._paused_s == math.inf
        usual = median(calm)
        stalls = sum(t - usual for t in self._times[self._level_from :] if t > STALL * usual)
        return self._paused_s + stalls > usual

    def drained(self) -> None:
        """The queue is emptied in the next iteration."""
        # times before an evaluation are as good as those after it
        if not (self._drained and self._paused_s == math.inf):
            self._level_from = len(self._times)
        self._drained, self._paused_s, self._leave_out = True, 0.0, 1 + AFTER_DRAIN

    def done(self, spent_s: float) -> bool:
        """Whether settling ends now; ``spent_s``: seconds since the block began. ``settled`` says
        if on evidence.
        """
        self.settled = (
            self.count >= self._block.min_settle
            and not self.drains
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
    """Several ranks: the same count on each, or they would change knobs at different steps.

    Nothing of one rank alone decides: not its times, and not its queue, since perhaps only the
    first rank reads data.
    """

    def drain_due(self) -> bool:
        return self.count == self._block.min_settle and not self.drains

    def done(self, spent_s: float) -> bool:
        self.settled = self.count >= self._block.min_settle + 1 + AFTER_DRAIN + GROUP
        return self.settled or self.count >= self._block.max_settle
