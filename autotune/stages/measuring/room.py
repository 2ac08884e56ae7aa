"""How long blocks may be where a job comes to its end while it is measured.

A live session goes on where the job would have stopped (its loader's epochs do not end), so it
meets the job's end as it comes: the command finishes, or a table of learning rates is over and the
job raises. The next session has to do with shorter blocks.

    12 │ 400 ✗                   the job has 300 steps
    200 │ 200 ✗                  one block fits now, the comparison it belongs to does not
    33 │ 33 │ 33 │ 33 │ 33 │ …   and now that does
"""

from __future__ import annotations

from dataclasses import replace

from autotune_trials.protocol.messages import Block

MIN_ITERATIONS, MAX_ITERATIONS = 8, 400  # of a block
# blocks for which there is to be room: the four of a comparison, one that was interrupted, and what
# all of them need to settle
ROUND = 6
# sessions in a row that end without one finished block, before the job is called too short
RESTARTS = 3


class Room:
    """``known``: iterations of blocks that one session of this job is known to have had room for."""

    def __init__(self, known: int = 0) -> None:
        self.longest = MAX_ITERATIONS  # a block may be
        self.finished = 0  # blocks of this session
        self._known = known
        self._measured = 0  # iterations of this session's blocks
        self._barren = 0  # sessions in a row that ended before a block was finished

    def begin_session(self) -> None:
        self.finished, self._measured = 0, 0

    def finish(self, iterations: int) -> None:
        """A block of so many measured iterations came through."""
        self._barren, self.finished = 0, self.finished + 1
        self._measured += iterations
        self._known = max(self._known, self._measured)

    def may_have_ended(self, kind: str, block: Block) -> bool:
        """Whether a session that failed so in ``block`` came to the job's end, or to an error of
        the job's past the steps it was made for.

        An error is the latter at most where blocks went well before, or where the block is longer
        than all that is known to fit.
        """
        return kind == "ended" or (
            kind == "crash" and (self.finished > 0 or 0 < self._known < block.iterations)
        )

    def end_session(self) -> bool:
        """Count a session that came to the job's end: may there be another?"""
        self._barren = 0 if self.finished else self._barren + 1
        return self._barren < RESTARTS

    def shortened(self, block: Block) -> Block:
        """``block`` as the next session should try it: half as long until it fits, then so that a
        whole comparison does.
        """
        fits = self._known // ROUND if block.iterations <= self._known else block.iterations // 2
        return replace(block, iterations=min(block.iterations, max(MIN_ITERATIONS, fits)))
