"""Blocks of the unchanged job in one running process, for OBSERVE.

Such a block is longer than one of a series, and measured again if other load disturbed it: the
figures of the job itself, and how noisy this machine is, come from a handful of them.
"""

from __future__ import annotations

from collections import deque

from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import FIRST_RUN
from autotune.stages.measuring.kept_session import KeptSession
from autotune.stages.measuring.room import MIN_ITERATIONS
from autotune.verdict.disturbed import disturbed
from autotune.verdict.timing import (
    cost_per_sample,
    joules_per_sample,
    restarts_with,
    start_of_workers_s,
)
from autotune_trials.protocol.messages import Block, BlockReport, Window

# target length of one measured block: long against scheduler ticks (4 ms), short against drift
# (seconds)
BLOCK_S = 0.7
BLOCK_LIMIT_S = 60.0
FIRST_ITERATIONS = 12  # while the job's speed is unknown
REMEASURE = 2  # times a disturbed block is measured again before it is accepted
CALM_WINDOWS = 5  # the latest windows show the usual load of this machine


class OwnBlocks(KeptSession):
    """Measures the unchanged job in a kept session (kept_session.py)."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._iteration_s: float | None = None
        self._count = 0
        first = context.stored(FIRST_RUN)
        # what starting the workers cost
        self._restart_s = 0.0 if first is None else start_of_workers_s(first.window)
        # of this session
        self._latest: deque[Window] = deque(maxlen=CALM_WINDOWS)
        self._turnovers_s: list[float] = []

    def close(self) -> None:
        super().close()
        self._latest.clear()
        self._turnovers_s.clear()

    def size(self) -> None:
        """Run a few iterations, which show how many the following blocks need."""
        times_s = window_of(self.block()).times_s
        self._iteration_s = sum(times_s) / len(times_s)

    def block(self) -> BlockReport:
        """Measure one block, again if the machine was disturbed meanwhile.

        Raises:
            BlockFailed, SessionFailed: the job fails.
            BaselineError: the job is too short to be measured in.
        """
        report = self.run({}, self._plan())
        for _ in range(REMEASURE):
            window = window_of(report)
            why = disturbed(window, tuple(self._latest))
            self._latest.append(window)
            if why is None:
                break
            self.context.note_disturbed("live block of the unchanged job", why)
            report = self.run({}, self._plan())
        self._turnovers_s += window_of(report).turnovers_s
        self._restart_s = report.rebuild_s or self._restart_s
        return report

    def block_from_memory(self) -> BlockReport:
        """Measure one block whose batches come from memory.

        Raises:
            BlockFailed: the job cannot run that way.
        """
        return self.run({}, self._plan(cached_batches=True))

    def cost(self, report: BlockReport) -> float:
        """Cost per sample of a measured block by the objective: seconds or joules."""
        if self.context.spec.objective == "energy":
            return joules_per_sample(window_of(report))
        return self.time_cost(report)

    def time_cost(self, report: BlockReport) -> float:
        """Seconds per sample of a measured block, epoch ends included."""
        return cost_per_sample(window_of(report), turnover_s=self.turnover_s())

    def turnover_s(self) -> float | None:
        """Seconds lost at an epoch's end: the mean over all blocks, as they are rare in short ones.

        If none was seen but workers restart every epoch, it is what starting them cost.
        """
        if self._turnovers_s:
            return sum(self._turnovers_s) / len(self._turnovers_s)
        return self._restart_s if restarts_with(self.job.loader, {}) else None

    def _plan(self, *, cached_batches: bool = False) -> Block:
        self._count += 1
        iterations = FIRST_ITERATIONS
        if self._iteration_s is not None:
            wanted = max(self.block_s(BLOCK_S) / self._iteration_s, MIN_ITERATIONS)
            iterations = round(min(wanted, self.room.longest))
        return Block(
            id=f"b{self._count}",
            knobs=(),
            iterations=iterations,
            max_seconds=max(BLOCK_LIMIT_S, 4 * iterations * (self._iteration_s or 0.0)),
            rounds_seconds=2 * BLOCK_S,
            cached_batches=cached_batches,
        )


def window_of(report: BlockReport) -> Window:
    assert report.window is not None
    return report.window
