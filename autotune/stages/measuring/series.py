"""Series: configurations measured one after another in the running job, in short blocks.

    series │ settle▒▒▒ block█ │▒█│▒█│▒█│▒█│ …

Blocks are as short as their knobs allow. Costly knobs (workers, compile) stay as they are within a
series; cheap ones (dtype, layout, gc) change with every block.

A block after a cheap change needs a few iterations to settle and a quarter of a second to be
measured. What one block lacks in precision, the search model takes from all the others
(autotune/search/model).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.job.configs import key_of, live_knobs_of
from autotune.results import Anatomy
from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import FIRST_RUN
from autotune.stages.measuring.kept_session import (
    COMPILE_LIMIT_S,
    BlockFailed,
    KeptSession,
    Outcome,
)
from autotune.stages.measuring.room import MIN_ITERATIONS
from autotune.verdict.disturbed import disturbed
from autotune.verdict.iterations import epoch_iterations, full_batches, mean_samples
from autotune.verdict.timing import (
    anatomy,
    cost_per_sample,
    joules_per_sample,
    restarts_with,
    start_of_workers_s,
    winsorized_mean,
)
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Window

BLOCK_S = 0.25  # target length of one measured block
MOST_WEIGHT = 4.0  # of a block: a longer one still shows only the machine's speed at that moment
SETTLE_ITERATIONS = 3  # after a cheap switch
ROUNDS_S = 1.0  # a block may be extended by this until every worker has delivered a few batches
BLOCK_LIMIT_S = 30.0  # a configuration this slow is hopeless
CALM_WINDOWS = 8  # the latest ones show the usual load of this machine


@dataclass(frozen=True)
class Measured:
    """One block of a series."""

    config: Config
    # per sample, in seconds (or joules); None: failed, or disturbed by other load
    log_cost: float | None
    weight: float = 0.0  # its length relative to a standard block
    failure: BlockFailed | None = None
    parts: Anatomy | None = None
    settle_s: float = 0.0
    wall_s: float = 0.0
    no_effect: Mapping[str, str] = field(default_factory=dict)  # knob -> why it did nothing
    second_log_cost: float | None = None  # joules if log_cost is in seconds, and vice versa


class LiveSeries(KeptSession):
    """Measures series in a kept session; see the module.

    Args:
        iteration_s: of the unchanged job.
        room, own_memory_gib: as of a kept session.
    """

    def __init__(
        self, context: RunContext, iteration_s: float, room: int = 0, own_memory_gib: float = 0.0
    ) -> None:
        super().__init__(context, room, own_memory_gib)
        # by configuration; "": for those not measured yet
        self._iteration_s = {"": iteration_s}
        self._samples = 0.0  # per iteration of the unchanged job
        # times lost at epoch ends, by the costly knobs that the loader is built from
        self._turnovers: dict[str, list[float]] = {}
        self._rebuilt: dict[str, float] = {}  # seconds to build the loader, by the same knobs
        self._epoch_samples = 0.0  # as a run of the unchanged job has shown; 0.0: unknown
        if (first := context.stored(FIRST_RUN)) is not None:
            self._rebuilt[key_of({})] = start_of_workers_s(first.window)
            self._epoch_samples = (epoch_iterations(first.window) or 0) * mean_samples(first.window)
        self._calm: deque[Window] = deque(maxlen=CALM_WINDOWS)
        self._count = 0
        self._before: Config | None = None  # the latest configuration of the job

    def close(self) -> None:
        super().close()
        self._before = None

    def measure(self, configs: Sequence[Config]) -> list[Measured]:
        """Measure the blocks of one series, in this order.

        Raises:
            BaselineError, SessionFailed: the unchanged job cannot be measured.
        """
        planned = []
        for config in configs:
            planned.append((config, self._block(config)))
            self._before = config
        return [self._measured(outcome) for outcome in self.run_all(planned)]

    def _block(self, config: Config) -> Block:
        self._count += 1
        space = self.context.spec.search_space
        slow_start = any(space[name].start_up_cost for name in config)
        block = Block(
            id=f"p{self._count}",
            knobs=live_knobs_of(config, space),
            iterations=self._iterations(config),
            max_seconds=COMPILE_LIMIT_S if slow_start else BLOCK_LIMIT_S,
            slow_start=slow_start,
            rounds_seconds=ROUNDS_S,
        )
        if self._settles_slowly(config):
            return block
        return replace(block, min_settle=SETTLE_ITERATIONS, level=False)

    def _settles_slowly(self, config: Config) -> bool:
        """Whether switching to ``config`` takes the job more than a few iterations to settle."""
        before = self._before
        space = self.context.spec.search_space
        slow = {
            name
            for name in {*(before or {}), *config}
            if space[name].costly or space[name].start_up_cost
        }
        return before is None or any(before.get(name) != config.get(name) for name in slow)

    def _iterations(self, config: Config) -> int:
        iteration_s = self._iteration_s.get(key_of(config), self._iteration_s[""])
        batch = config.get("batch_size")
        if isinstance(batch, int) and self._samples and key_of(config) not in self._iteration_s:
            iteration_s *= max(batch * self.job.world_size / self._samples, 1.0)
        wanted = max(self.block_s(BLOCK_S) / iteration_s, MIN_ITERATIONS)
        return round(min(wanted, self.room.longest))

    def _measured(self, outcome: Outcome) -> Measured:
        report = outcome.report
        if report is None or report.window is None:
            return Measured(outcome.config, None, failure=outcome.failure)
        window = full_batches(report.window)
        if window.epoch_iterations is None and self._epoch_samples:
            epoch = max(round(self._epoch_samples / mean_samples(window)), 1)
            window = replace(window, epoch_iterations=epoch)
        counted = any(window.joules)  # else the counters move too seldom, or could not be read
        by_energy = self.context.spec.objective == "energy"
        unusable = self._spoiled(window) or (by_energy and not counted)
        turnover_s = None if unusable else self._turnover_s(outcome.config, report)
        measured = Measured(
            outcome.config,
            None,
            parts=anatomy(window, report.settle_iterations, turnover_s=turnover_s),
            settle_s=report.settle_s,
            wall_s=report.settle_s + math.fsum(report.window.times_s),
            no_effect=report.no_effect,
        )
        if unusable:
            return measured
        iteration_s = winsorized_mean(window.times_s, rounds_of=window.workers)
        self._iteration_s[key_of(outcome.config)] = self._iteration_s[""] = iteration_s
        if not outcome.config:
            self._samples = sum(window.samples) / len(window.samples)
        cost = cost_per_sample(window, turnover_s=turnover_s)
        second = None
        if self.context.spec.reads_energy and counted:
            joules = joules_per_sample(window)
            cost, second = (joules, cost) if by_energy else (cost, joules)
        return replace(
            measured,
            log_cost=math.log(cost),
            weight=min(math.fsum(window.times_s) / BLOCK_S, MOST_WEIGHT),
            second_log_cost=None if second is None else math.log(second),
        )

    def _spoiled(self, window: Window) -> bool:
        """Whether something else ran meanwhile. If that is always so, it slows all blocks alike."""
        # the job causes it as well, and differently for each configuration
        quiet = replace(window, cpu_pressure=0.0)
        why = disturbed(quiet, tuple(self._calm))
        self._calm.append(quiet)
        return why is not None

    def _turnover_s(self, config: Config, report: BlockReport) -> float | None:
        """Mean time lost at an epoch's end with this loader.

        As long as none was seen: the time to build the loader, if every epoch does that.
        """
        assert report.window is not None
        space = self.context.spec.search_space
        key = key_of({name: value for name, value in config.items() if space[name].costly})
        seen = self._turnovers.setdefault(key, [])
        seen += report.window.turnovers_s
        if report.rebuild_s:
            self._rebuilt[key] = report.rebuild_s
        if seen:
            return sum(seen) / len(seen)
        return self._rebuilt.get(key) if restarts_with(self.job.loader, config) else None
