"""Compares configurations inside one running process of the job.

    B ▒█ │ C ▒█ │ C ▒█ │ B ▒█ │ C' ▒█ │ C' ▒█ │ B ▒█ …        B = reference block, C = candidate block, ▒ settle, █ measured

Each candidate block is next to a reference block, so that a drifting machine slows both alike; the
estimate is the log ratio of time per sample, one value per pair. A reference block closes one
comparison and opens the next. These figures steer the search and are never the result: the process
is not restarted between them (verdicts.md, "Search").
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean

from autotune.job.configs import in_words, key_of, live_choices
from autotune.results import Anatomy
from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import FIRST_RUN
from autotune.stages.measuring.kept_session import BLOCK_LIMIT_S, COMPILE_LIMIT_S, KeptSession
from autotune.stages.measuring.room import MIN_ITERATIONS
from autotune.verdict.speedup import LogRatio, live_log_ratio, pooled
from autotune.verdict.timing import (
    anatomy,
    cost_per_sample,
    disturbed,
    joules_per_sample,
    mean_turnover_s,
    restarts_workers,
    start_of_workers_s,
)
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Window

# target length of one measured block: long against scheduler ticks (4 ms), short against drift
# (seconds)
BLOCK_S = 0.7
FIRST_ITERATIONS = 12  # while the job's speed is unknown
REMEASURE = 2  # times a disturbed block is measured again before it is accepted
CALM_WINDOWS = 5  # a configuration's latest windows show the usual load of this machine
# blocks measured again; a machine that needs more is simply busy, and the noise figure shows it
MOST_REMEASURED = 8
# log ratio; a first pair this much slower, and beyond 4 sigma of noise, ends the comparison
CLEAR_LOSS = 0.10
ROUNDS = 3  # of two pairs each, for one comparison
# standard error of a round's log ratio above which (and above 3x the noise) it was disturbed
SPOILED = 0.08


@dataclass(frozen=True)
class Comparison:
    """One candidate against the reference beside it."""

    ratio: LogRatio
    pruned: bool
    anatomy: Anatomy
    settle_s: float  # of the candidate's first block: its start-up cost (compile, workers)
    no_effect: dict[str, str] = field(default_factory=dict)
    second: float | None = None  # log ratio by the job's second objective; None: not measured


class _History:
    """The latest windows of one configuration, and the total time lost at its epoch ends."""

    def __init__(self, rebuild_s: float = 0.0) -> None:
        self.latest: deque[Window] = deque(maxlen=CALM_WINDOWS)
        self.rebuild_s = rebuild_s  # when its loader was built last
        self._turnovers, self._turnovers_s = 0, 0.0

    def add(self, window: Window, rebuild_s: float) -> None:
        self.latest.append(window)
        self.rebuild_s = rebuild_s or self.rebuild_s
        self._turnovers += len(window.turnovers_s)
        self._turnovers_s += sum(window.turnovers_s)

    @property
    def mean_turnover_s(self) -> float | None:
        """Mean time lost at an epoch's end; None if no window held one."""
        return self._turnovers_s / self._turnovers if self._turnovers else None


class LiveComparison(KeptSession):
    """Compares configurations in a kept session (kept_session.py).

    Args:
        room, own_memory_gib: as of a kept session.
    """

    def __init__(
        self,
        context: RunContext,
        process_config: Config | None = None,
        noise: float = 0.02,
        room: int = 0,
        own_memory_gib: float = 0.0,
    ) -> None:
        super().__init__(context, process_config, room, own_memory_gib)
        self.noise = noise
        self.disturbed_blocks = 0
        self._iteration_s: float | None = None  # of the reference
        self._samples = 1.0  # samples an iteration of the reference
        # key and cost of the reference block measured last
        self._beside: tuple[str, float] | None = None
        self._count = 0
        # of the reference and the current candidate, in this session
        self._histories: dict[str, _History] = {}
        first = context.stored(FIRST_RUN)
        self._started_s = 0.0 if first is None else start_of_workers_s(first.window)  # the job's
        # configuration -> log(cost by the second objective / by the first), one per block
        self._ratios: dict[str, list[float]] = {}

    def close(self) -> None:
        super().close()
        self._beside = None
        self._histories.clear()

    def block(self, config: Config, *, cached_batches: bool = False) -> BlockReport:
        """Measure one block of ``config``, again if the machine was disturbed meanwhile.

        Raises:
            BlockFailed: out of memory, a knob that raised, a crash or a hang with this
                configuration.
            BaselineError: the job is too short to be measured in.
        """
        report = self.run(config, self._plan(config, cached_batches))
        for _ in range(REMEASURE):
            # batches from memory: another load, and no epoch ends
            history = self._histories.setdefault(
                key_of(config) + " from memory" * cached_batches,
                _History(0.0 if config else self._started_s),
            )
            why = None if cached_batches else disturbed(_window(report), tuple(history.latest))
            history.add(_window(report), report.rebuild_s)
            if why is None or self.disturbed_blocks >= MOST_REMEASURED:
                break
            self.disturbed_blocks += 1
            self.context.note_disturbed(f"live block of {in_words(config)}", why)
            report = self.run(config, self._plan(config, cached_batches))
        return report

    def cost(self, config: Config, report: BlockReport) -> float:
        """Cost per sample of a measured block by the objective: seconds or joules."""
        time_s = self.time_cost(config, report)
        if not self.context.spec.reads_energy:
            return time_s
        costs = joules_per_sample(_window(report)), time_s
        first, second = costs if self.context.spec.objective == "energy" else costs[::-1]
        self._ratios.setdefault(key_of(config), []).append(math.log(second / first))
        return first

    def time_cost(self, config: Config, report: BlockReport) -> float:
        """Seconds per sample of a measured block, epoch ends included."""
        return cost_per_sample(_window(report), turnover_s=self.turnover_s(config, report))

    def turnover_s(self, config: Config, report: BlockReport) -> float | None:
        """Seconds lost at an epoch's end: the mean over all blocks of this configuration, as they
        are rare in short blocks.

        If none was seen but workers restart every epoch, it is what starting them cost at the
        switch, or at the start of the unchanged job.
        """
        history = self._histories.get(key_of(config))
        turnover_s = history.mean_turnover_s if history else mean_turnover_s(_window(report))
        if turnover_s is None and self._restarts_workers(config):
            turnover_s = history.rebuild_s if history else report.rebuild_s
        return turnover_s

    def _restarts_workers(self, config: Config) -> bool:
        loader = self.job.loader
        if loader is None:
            return False
        return restarts_workers(
            config.get("num_workers", loader.num_workers),
            config.get("persistent_workers", loader.persistent_workers),
        )

    def size(self, config: Config) -> None:
        """Run a few iterations of ``config``, which show how many the following blocks need."""
        self._sized(_window(self.block(config)))

    def _sized(self, window: Window) -> None:
        self._iteration_s = sum(window.times_s) / len(window.times_s)
        self._samples = sum(window.samples) / len(window.samples)

    def reference(self, config: Config) -> float:
        """Measure a reference block, a neighbour of the next block; returns its cost per sample."""
        if self._iteration_s is None:
            self.size(config)
        report = self.block(config)
        cost = self.cost(config, report)
        self._sized(_window(report))
        self._beside = (key_of(config), cost)
        return cost

    def compare(
        self,
        candidate: Config,
        reference: Config,
        *,
        prune: bool = True,
        enough: Callable[[LogRatio], bool] | None = None,
    ) -> Comparison:
        """Compare ``candidate`` with ``reference`` in rounds of two ABBA pairs.

        Args:
            prune: give up after the first block of a clear loser.
            enough: whether the estimate so far is good enough; called after each of at most
                :data:`ROUNDS` rounds. A round that the machine spoiled (far less precise than its
                noise promises) is followed by another one in any case.

        Raises:
            BlockFailed, BaselineError: as :meth:`block`.
        """
        try:
            rounds = [self._round(candidate, reference, prune)]
            while not rounds[-1].pruned and len(rounds) < ROUNDS:
                ratio = pooled([r.ratio for r in rounds])
                if ratio.standard_error <= max(SPOILED, 3 * self.noise) and (
                    enough is None or enough(ratio)
                ):
                    break
                rounds.append(self._round(candidate, reference, False))
        finally:
            # a search of a thousand candidates must not hold all their windows
            if candidate != reference:
                self._histories.pop(key_of(candidate), None)
        no_effect = {knob: why for r in rounds for knob, why in r.no_effect.items()}
        ratio = pooled([r.ratio for r in rounds])
        second = self._second(candidate, reference, ratio)
        return replace(rounds[0], ratio=ratio, no_effect=no_effect, second=second)

    def _second(self, candidate: Config, reference: Config, ratio: LogRatio) -> float | None:
        """Log ratio by the second objective; None: not measured.

        It compares the two costs of a block, so that a slow moment of the machine counts in
        neither.
        """
        ratios = [self._ratios.get(key_of(config)) for config in (candidate, reference)]
        if candidate != reference:
            self._ratios.pop(key_of(candidate), None)
        if ratios[0] is None or ratios[1] is None:
            return None
        return ratio.estimate + fmean(ratios[0]) - fmean(ratios[1])

    def _round(self, candidate: Config, reference: Config, prune: bool) -> Comparison:
        """Make one round; if the job ended meanwhile, repeat it once and keep the result."""
        found = self._round_once(candidate, reference, prune, one_process=True) or self._round_once(
            candidate, reference, prune
        )
        assert found is not None
        return found

    def _round_once(
        self, candidate: Config, reference: Config, prune: bool, one_process: bool = False
    ) -> Comparison | None:
        """``one_process``: return None once the job has ended.

        Blocks of two processes are no neighbours.
        """
        opening, restarts = self._opening(reference), self.restarts
        report = self.block(candidate)
        if one_process and self.restarts != restarts:
            return None
        cost = self.cost(candidate, report)
        parts = anatomy(_window(report), report.settle_iterations)
        no_effect = dict(report.no_effect)
        if prune and math.log(cost / opening) > max(CLEAR_LOSS, 4 * self.noise):
            self._beside = None  # the last reference block is no longer a neighbour
            ratio = LogRatio(math.log(cost / opening), self.noise * math.sqrt(2), 1)
            return Comparison(ratio, True, parts, report.settle_s, no_effect)
        again = self.cost(candidate, self.block(candidate))
        if one_process and self.restarts != restarts:
            return None
        closing = self.reference(reference)
        if one_process and self.restarts != restarts:
            return None
        blocks = [("B", opening), ("C", cost), ("C", again), ("B", closing)]
        return Comparison(
            live_log_ratio(blocks, noise=self.noise), False, parts, report.settle_s, no_effect
        )

    def _opening(self, reference: Config) -> float:
        """Cost of the latest reference block if it is next to the candidate; else of a new one."""
        if self._beside is None or self._beside[0] != key_of(reference):
            return self.reference(reference)
        return self._beside[1]

    def _plan(self, config: Config, cached_batches: bool) -> Block:
        self._count += 1
        space = self.context.spec.search_space
        slow_start = any(space[name].start_up_cost for name in config)
        if self._iteration_s is None:
            iterations = FIRST_ITERATIONS
        else:
            batch = config.get("batch_size")
            # each rank has its own batch
            samples = float(batch) * self.job.world_size if isinstance(batch, int) else 0.0
            scale = samples / self._samples if samples > self._samples else 1.0
            iterations = round(
                min(max(BLOCK_S / (self._iteration_s * scale), MIN_ITERATIONS), self.room.longest)
            )
        limit = COMPILE_LIMIT_S if slow_start else BLOCK_LIMIT_S
        expected = (self._iteration_s or 0.0) * iterations * 4
        return Block(
            id=f"b{self._count}",
            knobs=live_choices(config, space),
            iterations=iterations,
            max_seconds=max(limit, expected),
            slow_start=slow_start,
            rounds_seconds=2 * BLOCK_S,
            cached_batches=cached_batches,
        )


def _window(report: BlockReport) -> Window:
    assert report.window is not None
    return report.window
