"""Comparing configurations inside one running process of the job.

    B ▒█ │ C ▒█ │ C ▒█ │ B ▒█ │ C' ▒█ │ C' ▒█ │ B ▒█ …        B = reference block, C = candidate block, ▒ settle, █ measured

Each candidate block has a reference block at its side, so that a machine that drifts slows both alike; the estimate is the
log ratio of time per sample, one value a pair. A reference block closes one comparison and opens the next. These figures
steer the search and are never the result: the process is not restarted between them (verdicts.md, "Search").
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType

from autotune.errors import BaselineError
from autotune.executors.base import LiveSession, SessionFailed
from autotune.job.configs import in_words, key_of, live_choices
from autotune.results import Anatomy
from autotune.secrets import mask_command
from autotune.stages.bench import KILLS, Bench
from autotune.stages.lanes import MOST_LOST
from autotune.stages.room import MIN_ITERATIONS, Room
from autotune.verdict.speedup import LogRatio, live_log_ratio, pooled
from autotune.verdict.timing import anatomy, cost_per_sample, disturbed, mean_turnover_s
from autotune_spaces.base import Config
from autotune_trials.diagnose import KILLED, WORKERS_TOO_MANY
from autotune_trials.protocol import Block, BlockReport, Window

BLOCK_S = 0.7  # aim of one measured block: long against scheduler ticks (4 ms), short against drift (seconds)
FIRST_ITERATIONS = 12  # before anything is known of the job's speed
BLOCK_LIMIT_S = 60.0  # a candidate this slow has lost anyway
COMPILE_LIMIT_S = 300.0  # max-autotune of a large model takes minutes
REMEASURE = 2  # times a disturbed block is measured again before it is taken as it is
CALM_WINDOWS = 5  # the latest windows of a configuration say what load is usual on this machine
MOST_REMEASURED = 8  # blocks of one session; a machine busier than that is simply busy, and the noise figure says so
CLEAR_LOSS = 0.10  # log ratio; a first pair this much slower, and beyond 4 sigma of noise, ends the comparison
ROUNDS = 3  # of two pairs each, for one comparison
TOO_MANY_WORKERS = "workers are more than the machine or its limits hold"
SPOILED = 0.08  # standard error of a round's log ratio above which (and above 3x the noise) something hit it


class BlockFailed(Exception):
    """A candidate could not be measured. ``kind``: infeasible (memory), failed (anything else)."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


@dataclass(frozen=True)
class Comparison:
    """One candidate against the reference beside it."""

    ratio: LogRatio
    pruned: bool
    anatomy: Anatomy
    settle_s: float  # of the candidate's first block: what it costs to start (compile, workers)
    no_effect: dict[str, str] = field(default_factory=dict)


class _History:
    """What is kept of the windows of one configuration: the latest, and what its epochs' ends took in all."""

    def __init__(self) -> None:
        self.latest: deque[Window] = deque(maxlen=CALM_WINDOWS)
        self._turnovers, self._turnovers_s = 0, 0.0

    def add(self, window: Window) -> None:
        self.latest.append(window)
        self._turnovers += len(window.turnovers_s)
        self._turnovers_s += sum(window.turnovers_s)

    @property
    def mean_turnover_s(self) -> float | None:
        """Mean time lost at an epoch's end; None if no window held one."""
        return self._turnovers_s / self._turnovers if self._turnovers else None


class LiveComparison:
    """Opens the job when it must, keeps it as long as it lives, and measures blocks in it. A context manager.

    ``room``: iterations of a block that a session of this job is known to have room for.
    """

    def __init__(self, bench: Bench, process_config: Config | None = None, noise: float = 0.02, room: int = 0) -> None:
        self.bench, self.process_config, self.noise = bench, dict(process_config or {}), noise
        self.disturbed_blocks = 0
        self._session: LiveSession | None = None
        self._iteration_s: float | None = None  # of the reference
        self._samples = 1.0  # samples an iteration of the reference
        self._beside: tuple[str, float] | None = None  # key and cost of the reference block measured last
        self._kills = 0  # of the job, by somebody else, since a block was finished
        self._room = Room(room)
        self._restarts = 0  # sessions that ended by themselves
        self._lost = 0  # sessions whose machine is gone
        self._count = 0
        self._histories: dict[str, _History] = {}  # of the reference and of what is being compared with it, in this session

    def __enter__(self) -> LiveComparison:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session, self._beside = None, None
        self._room.begin_session()
        self._histories.clear()

    @property
    def session(self) -> LiveSession:
        """The running session, started if need be."""
        if self._session is None:
            self._session = self.bench.executor.open_live(self.process_config)
        return self._session

    def block(self, config: Config, *, cached_batches: bool = False) -> BlockReport:
        """Measure one block of ``config``, again if the machine was disturbed meanwhile.

        Raises:
            BlockFailed: out of memory, a knob that raised, a crash or a hang with this configuration.
            BaselineError: the job is too short to be measured in.
        """
        report = self._measure(config, cached_batches)
        for _ in range(REMEASURE):
            history = self._histories.setdefault(key_of(config) + " from memory" * cached_batches, _History())  # another load, no epoch ends
            why = None if cached_batches else disturbed(_window(report), tuple(history.latest))
            history.add(_window(report))
            if why is None or self.disturbed_blocks >= MOST_REMEASURED:
                break
            self.disturbed_blocks += 1
            self.bench.note_disturbed(f"live block of {in_words(config)}", why)
            report = self._measure(config, cached_batches)
        return report

    def cost(self, config: Config, report: BlockReport) -> float:
        """Seconds a sample of a measured block, the epoch's end included.

        Epoch ends are rare in short blocks: their cost is the mean over all blocks of this configuration, and where none was
        seen but workers are started anew every epoch, what starting them cost at the switch.
        """
        history = self._histories.get(key_of(config))
        turnover_s = history.mean_turnover_s if history else mean_turnover_s(_window(report))
        if turnover_s is None and self._restarts_workers(config):
            turnover_s = report.rebuild_s
        return cost_per_sample(_window(report), turnover_s=turnover_s)

    def _restarts_workers(self, config: Config) -> bool:
        loader = self.session.job.loader
        if loader is None:
            return False
        workers = config.get("num_workers", loader.num_workers)
        return bool(workers) and not config.get("persistent_workers", loader.persistent_workers)

    def reference(self, config: Config) -> float:
        """Cost a sample of a fresh reference block; it stands beside whatever is measured next."""
        report = self.block(config)
        window, cost = _window(report), self.cost(config, report)
        self._iteration_s = sum(window.times_s) / len(window.times_s)
        self._samples = sum(window.samples) / len(window.samples)
        self._beside = (key_of(config), cost)
        return cost

    def compare(
        self, candidate: Config, reference: Config, *, prune: bool = True, enough: Callable[[LogRatio], bool] | None = None
    ) -> Comparison:
        """``candidate`` against ``reference`` in rounds of two ABBA pairs.

        Args:
            prune: give up after the first block of a clear loser.
            enough: whether the estimate so far will do; asked after each of at most :data:`ROUNDS` rounds. A round that the
                machine spoiled (far less precise than its noise promises) is followed by another one in any case.

        Raises:
            BlockFailed, BaselineError: as :meth:`block`.
        """
        try:
            rounds = [self._round(candidate, reference, prune)]
            while not rounds[-1].pruned and len(rounds) < ROUNDS:
                ratio = pooled([r.ratio for r in rounds])
                if ratio.sigma <= max(SPOILED, 3 * self.noise) and (enough is None or enough(ratio)):
                    break
                rounds.append(self._round(candidate, reference, False))
        finally:
            if candidate != reference:  # a search of a thousand candidates is not to hold all their windows
                self._histories.pop(key_of(candidate), None)
        no_effect = {knob: why for r in rounds for knob, why in r.no_effect.items()}
        return replace(rounds[0], ratio=pooled([r.ratio for r in rounds]), no_effect=no_effect)

    def _round(self, candidate: Config, reference: Config, prune: bool) -> Comparison:
        """One round; once more if the job came to its end meanwhile, and then whatever happens."""
        found = self._round_once(candidate, reference, prune, one_process=True) or self._round_once(candidate, reference, prune)
        assert found is not None
        return found

    def _round_once(self, candidate: Config, reference: Config, prune: bool, one_process: bool = False) -> Comparison | None:
        """``one_process``: None as soon as the job has come to its end, because blocks of two processes are no neighbours."""
        opening, restarts = self._opening(reference), self._restarts
        report = self.block(candidate)
        if one_process and self._restarts != restarts:
            return None
        cost, parts = self.cost(candidate, report), anatomy(_window(report), report.settle_iterations)
        no_effect = dict(report.no_effect)
        if prune and math.log(cost / opening) > max(CLEAR_LOSS, 4 * self.noise):
            self._beside = None  # the last reference block is no neighbour any more
            ratio = LogRatio(math.log(cost / opening), self.noise * math.sqrt(2), 1)
            return Comparison(ratio, True, parts, report.settle_s, no_effect)
        again = self.cost(candidate, self.block(candidate))
        if one_process and self._restarts != restarts:
            return None
        closing = self.reference(reference)
        if one_process and self._restarts != restarts:
            return None
        blocks = [("B", opening), ("C", cost), ("C", again), ("B", closing)]
        return Comparison(live_log_ratio(blocks, noise=self.noise), False, parts, report.settle_s, no_effect)

    def _opening(self, reference: Config) -> float:
        """Cost of the reference block that was measured last, if it still has a candidate at its side; else of a new one."""
        if self._beside is None or self._beside[0] != key_of(reference):
            return self.reference(reference)
        return self._beside[1]

    def _measure(self, config: Config, cached_batches: bool) -> BlockReport:
        planned = block = self._plan(config, cached_batches)
        while True:
            try:
                [report] = self.session.measure([block])
            except SessionFailed as failure:
                try:
                    block = self._again(failure, config, block)
                finally:
                    self.close()
                continue
            if self._worker_was_killed(report):
                continue
            self._room.finish(len(report.window.times_s) if report.window else 0)
            self.bench.stop.check_after("crash" if report.error else "")
            self._kills = 0
            if report.error or report.window is None or not report.window.times_s:
                raise self._failed(report)
            if block != planned:
                self._room.longest = block.iterations
            self._check_memory(report.window)
            return report

    def _plan(self, config: Config, cached_batches: bool) -> Block:
        self._count += 1
        space = self.bench.spec.search_space
        slow_start = any(space[name].start_up_cost for name in config)
        if self._iteration_s is None:
            iterations = FIRST_ITERATIONS
        else:
            batch = config.get("batch_size")
            samples = float(batch) * self.session.job.world_size if isinstance(batch, int) else 0.0  # each rank has its own batch
            scale = samples / self._samples if samples > self._samples else 1.0
            iterations = round(min(max(BLOCK_S / (self._iteration_s * scale), MIN_ITERATIONS), self._room.longest))
        limit = COMPILE_LIMIT_S if slow_start else BLOCK_LIMIT_S
        expected = (self._iteration_s or 0.0) * iterations * 4
        return Block(
            id=f"b{self._count}", knobs=live_choices(config, space), iterations=iterations,
            max_seconds=max(limit, expected), rounds_seconds=2 * BLOCK_S, cached_batches=cached_batches,
        )

    def _again(self, failure: SessionFailed, config: Config, block: Block) -> Block:
        """The block to try in a new session: the job has come to its end, or was killed, or its machine is lost. Raises what else it means."""
        self.bench.stop.check_after(failure.kind)
        if failure.kind == "killed" and self._kills < KILLS - 1:
            self._kills, self._restarts = self._kills + 1, self._restarts + 1
            self.bench.progress.note(f"the job was killed ({failure.detail}); started again")
            return block
        if failure.kind == "lost":
            self._restarts, self._lost = self._restarts + 1, self._lost + 1
            if not self.bench.executor.fails_over or self._lost > MOST_LOST:
                raise failure
            self.bench.progress.warning(f"{failure.detail}: what was being measured there is measured again")
            return block
        own = not config and not block.cached_batches  # nothing is asked of the job that it does not do by itself
        if self._room.may_have_ended(failure.kind, block):
            self._restarts += 1
            if self._room.end_session():
                return self._room.shortened(block)
            raise self._too_short(failure) if own else BlockFailed("failed", f"the job ends before one block could be measured ({failure.detail})")
        if own and self.process_config == {}:
            raise failure
        self._kills = 0
        raise _lost_trial(failure)

    def _worker_was_killed(self, report: BlockReport) -> bool:
        """Somebody killed a worker of the job's DataLoader, without which the job goes on at its own settings: the block is measured again.

        Raises:
            BlockFailed: too often in a row.
        """
        if not KILLED.search(report.error):
            return False
        self.bench.stop.check_after("killed")
        self._kills += 1
        if self._kills < KILLS:
            self.bench.progress.note(f"measured again: {report.error}")
            return True
        self._kills = 0
        raise BlockFailed("infeasible", f"workers of its DataLoader were killed {KILLS} times in a row ({report.error})")

    def _too_short(self, failure: SessionFailed) -> BaselineError:
        command = " ".join(mask_command(self.bench.spec.command))
        if failure.kind == "crash":
            tail = f"\n{failure.log_tail}" if failure.log_tail else ""
            return BaselineError(
                f"the job fails before one block of iterations could be measured: {failure.detail}{tail}",
                where=failure.where or command, expected="a few hundred optimizer steps",
                remedy="make the command run for so many steps by itself; "
                "if it is made for fewer and fails beyond its end, raise its number of epochs or steps in job.yaml's command",
            )
        return BaselineError(
            "the job ends before one block of iterations could be measured",
            where=command, expected=f"a few hundred optimizer steps ({failure.detail})",
            remedy="raise its number of epochs or steps in job.yaml's command: trials never run to the end",
        )

    def _failed(self, report: BlockReport) -> BlockFailed:
        kind, _, text = report.error.partition(":")
        if kind == "oom":
            return BlockFailed("infeasible", f"out of memory ({text.strip()})")
        if found := WORKERS_TOO_MANY.search(report.error):
            return BlockFailed("infeasible", f"{found['workers']} {TOO_MANY_WORKERS} ({found['error']})")
        return BlockFailed("failed", report.error or "no iteration was finished in the time a block may take")

    def _check_memory(self, window: Window) -> None:
        limits, machine = self.bench.spec.constraints, self.session.machine
        if self.session.job.device == "cuda" and machine.device_memory_gib:
            share = window.peak_memory_gib / machine.device_memory_gib
            if share > limits.device_memory_fraction:
                raise BlockFailed("infeasible", f"uses {share:.0%} of the device's memory, more than device_memory_fraction allows")
        elif limits.host_memory_gib is not None and window.peak_memory_gib > limits.host_memory_gib:
            raise BlockFailed("infeasible", f"uses {window.peak_memory_gib:.1f} GiB, more than host_memory_gib allows")


def _window(report: BlockReport) -> Window:
    assert report.window is not None
    return report.window


def _lost_trial(failure: SessionFailed) -> BlockFailed:
    """What the end of a session says of the configuration that was being measured in it."""
    if failure.kind == "oom":
        return BlockFailed("infeasible", f"out of memory ({failure.detail})")
    if failure.kind == "killed":  # by a guard of the machine's memory, most likely: larger sizes are not tried
        return BlockFailed("infeasible", f"killed {KILLS} times in a row ({failure.detail})")
    return BlockFailed("failed", f"{failure.kind}: {failure.detail}")
