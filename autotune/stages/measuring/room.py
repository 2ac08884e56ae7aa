"""How long blocks may be if a job reaches its end while it is measured.

A live session continues where the job would have stopped (its loader's epochs do not end), so it
meets the job's end without warning: the command finishes, or a table of learning rates is exhausted
and the job raises. The next session has to use shorter blocks.

    12 │ 400 ✗                   the job has 300 steps
    200 │ 200 ✗                  one block fits now, but not a whole comparison
    33 │ 33 │ 33 │ 33 │ 33 │ …   now a comparison fits
"""

from __future__ import annotations

from dataclasses import replace

from autotune_trials.protocol.messages import Block

MIN_ITERATIONS, MAX_ITERATIONS = 8, 400  # of a block
# blocks that a session should have room for: the four of a comparison, one that was interrupted,
# and settling for all of them
ROUND = 6
# consecutive sessions without a finished block before the job is called too short
RESTARTS = 3


class Room:
    """Tracks how long blocks may be.

    ``known``: iterations of blocks that one session of this job is known to have had room for.
    """

    def __init__(self, known: int = 0) -> None:
        self.longest = MAX_ITERATIONS  # iterations of a block
        self.finished = 0  # finished blocks of this session
        self._known = known
        self._measured = 0  # iterations of this session's blocks
        self._barren = 0  # consecutive sessions that ended before a block was finished

    def begin_session(self, blocks: int = 0, iterations: int = 0) -> None:
        """Begin with a session that has measured ``blocks`` of ``iterations`` in all."""
        self.finished, self._measured = blocks, iterations
        self._known = max(self._known, iterations)

    def finish(self, iterations: int) -> None:
        """Count a finished block of ``iterations`` measured iterations."""
        self._barren, self.finished = 0, self.finished + 1
        self._measured += iterations
        self._known = max(self._known, self._measured)

    def may_have_ended(self, kind: str, block: Block) -> bool:
        """Whether a session that failed in ``block`` reached the job's end.

        That includes an error past the steps the job was made for. A crash counts as one only after
        finished blocks, or if the block is longer than everything that is known to fit.
        """
        return kind == "ended" or (
            kind == "crash" and (self.finished > 0 or 0 < self._known < block.iterations)
        )

    def end_session(self) -> bool:
        """Count a session that reached the job's end; returns whether there may be another."""
        self._barren = 0 if self.finished else self._barren + 1
        return self._barren < RESTARTS

    def shortened(self, block: Block) -> Block:
        """Return ``block`` for the next session, with fewer iterations.

        Half as many until it fits, then as many as leave room for a whole comparison.
        """
        fits = self._known // ROUND if block.iterations <= self._known else block.iterations // 2
        return replace(block, iterations=min(block.iterations, max(MIN_ITERATIONS, fits)))
