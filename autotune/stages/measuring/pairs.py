"""A candidate and a reference in fresh processes, interleaved, each run serving both verdicts.

    pair 0: R C │ pair 1: C R │ pair 2: R C │ …        every letter a new process of the job; pair i runs with seed i

The direction alternates so that neither side profits from a machine that warms up or is filled with
caches; the two runs of a pair stand side by side in time (their speed is compared) and have the
same seed (their losses are compared). Where two processes may be alive at once they train in slices
(interleaving.py), else one after the other. On a cluster several
pairs are made at the same time, each on a machine of its own (lanes.py): a ratio is always one of
two runs of the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median, stdev

from autotune.errors import BaselineError
from autotune.executors.base import NODE, SessionFailed
from autotune.executors.interleave import SLICES
from autotune.job.configs import key_of
from autotune.objectives import WHOLE_TRAINING
from autotune.results import Anatomy, Observation, TrainingTime
from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import FreshRuns, rounds, wall_s
from autotune.stages.measuring.interleaving import may_interleave, stop_interleaving
from autotune.stages.measuring.lanes import MOST_LOST, spread
from autotune.stages.measuring.memory_limits import beyond_limits
from autotune.stages.observe import explain_failure
from autotune.verdict.gradients import relative_error
from autotune.verdict.speedup import LogRatio, noise_of
from autotune.verdict.timing import (
    anatomy,
    cost_of_run,
    drop_start,
    first_counted,
    joules_per_sample,
    later_epoch,
    mean_samples,
    mean_turnover_s,
    restarts_workers,
    start_of_workers_s,
    start_up_excess,
    winsorized_mean,
)
from autotune.verdict.training_time import asides, training_s
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Record, Window

PROCESS_PAIRS = 3  # a value that needs a new process is tried with so many
# What the blocks of OBSERVE say of the noise counts as much as so many pairs. More than 5 % is the
# work of a single block: a run's window is many times as long.
USUAL_PAIRS, MOST_NOISE = 3, 0.05


@dataclass(frozen=True, eq=False)
class Seed:
    """A pair to be made."""

    seed: int


class Pairs:
    """Runs of both sides, made on demand and remembered in the journal.

    Attributes:
        reference, candidate: seed -> record.
    """

    timed = True  # False: of the losses only
    interleaves = True  # where the job and the machine allow it

    def __init__(
        self,
        context: RunContext,
        candidate: Config,
        reference: Config,
        label: str,
        cold_s: float = 0.0,
    ) -> None:
        """``cold_s``: what the candidate's start takes longer at least, where nothing is compiled
        yet; these runs find the kernels of the search.
        """
        self.context, self.label, self.cold_s = context, label, cold_s
        self.configs = {"reference": dict(reference), "candidate": dict(candidate)}
        self.reference: dict[int, Record] = {}
        self.candidate: dict[int, Record] = {}
        place = "|".join(
            [label, key_of(self.configs["candidate"]), key_of(self.configs["reference"])]
        )
        self._fresh = FreshRuns(context, context.spec.convergence.steps, place)

    def ensure(self, pairs: int) -> None:
        """Have at least ``pairs`` pairs.

        Raises:
            SessionFailed: a run of the candidate failed, or is too short to be timed.
            BaselineError: the unchanged job failed, twice, or is too short to be timed.
        """
        missing = [
            Seed(s) for s in range(pairs) if s not in self.reference or s not in self.candidate
        ]
        if not missing:
            return
        pieces_left = iter(missing)

        def serve(lane: RunContext, pieces: Iterator[Seed]) -> None:
            for piece in pieces:
                self._pair(lane, piece.seed, pairs)

        def give_up(piece: Seed, failure: SessionFailed) -> None:
            raise SessionFailed(
                "lost",
                f"{MOST_LOST} times the machine was lost that pair {piece.seed} ran on; the last"
                f" time: {failure.detail}",
            )

        spread(self.context, lambda: next(pieces_left, None), serve, give_up)

    def first_candidate(self) -> Record:
        """One run of the candidate by itself. :meth:`ensure` does not take it for half a pair, and
        makes both runs.

        Raises:
            SessionFailed: it failed.
        """
        self.context.progress.fixed_run(f"{self.label}: candidate", 1, 2, self.configs["candidate"])
        return self._run(self.context, "candidate", 0)

    def _pair(self, context: RunContext, seed: int, pairs: int) -> None:
        """Both runs of one seed, on one machine: what is there of another machine is measured
        again.
        """
        order = ("reference", "candidate") if seed % 2 == 0 else ("candidate", "reference")
        mine = {side: getattr(self, side).get(seed) for side in order}
        known = {side: mine[side] or context.stored(self._key(side, seed)) for side in order}
        if any(record is None for record in known.values()):
            known = mine  # half a pair of an earlier process stands beside nothing in time
        whole = (
            len({node_of(record) if record is not None else None for record in known.values()}) == 1
        )
        if known["reference"] is None and known["candidate"] is None:
            known.update(self._interleaved(context, order, seed, pairs))
        for position, side in enumerate(order):
            record = known[side]
            if record is None or not (whole or node_of(record) == context.executor.node):
                label, config = self._shown(side)
                context.progress.fixed_run(label, 2 * seed + position + 1, 2 * pairs, config)
                record = self._measured(context, side, seed)
            getattr(self, side)[seed] = record

    def _interleaved(
        self, context: RunContext, order: Sequence[str], seed: int, pairs: int
    ) -> dict[str, Record]:
        """Both runs of one seed, in slices. {}: they have to be made one after the other.

        Raises:
            SessionFailed, BaselineError: as :meth:`_measured`, of a run that is too short.
        """
        wanted = self.timed and self.interleaves
        if not (wanted and may_interleave(context, *self.configs.values())):
            return {}
        label = f"{self.label}: both sides, in slices"
        context.progress.fixed_run(label, 2 * seed + 1, 2 * pairs, self.configs["candidate"])
        try:
            records = self._fresh.interleaved(
                context.executor,
                [self.configs[side] for side in order],
                seed,
                [self._label(side, seed) for side in order],
                [self._calm(context, side) for side in order],
            )
        except SessionFailed as failure:
            context.stop.check_after(failure.kind)
            stop_interleaving(context, failure)
            return {}
        made = dict(zip(order, records, strict=True))
        for side, record in made.items():
            with _own_failure(self.configs[side]):
                self._fresh.require_enough(record, self.configs[side])
        for side, record in made.items():
            self._keep(context, side, seed, record)
        context.stop.check()
        return made

    def _shown(self, side: str) -> tuple[str, Config]:
        """What a run is called while it is made, and its settings."""
        return f"{self.label}: {side}", self.configs[side]

    def missing(self, pairs: int) -> int:
        """How many of so many pairs of this label and these two configurations have not been made
        yet, by this run or an earlier process of it.
        """
        return sum(
            any(self.context.stored(self._key(side, seed)) is None for side in self.configs)
            for seed in range(pairs)
        )

    def repeat_reference(self, seed: int) -> Record:
        """The reference once more with the same seed, on the same machine if it is still there: is
        the job deterministic?
        """
        return self._beside(
            self.reference[seed], partial(self._run, side="reference", seed=seed, again=True)
        )

    def beyond_limits(self, observation: Observation) -> str:
        """What the candidate took of memory beyond the job's constraints; "": nothing."""
        limits, device = self.context.spec.constraints, observation.job.device
        own_gib = max(r.window.peak_memory_gib for r in self.reference.values())
        found = (
            beyond_limits(limits, observation.machine, device, record.window, own_gib)
            for record in self.candidate.values()
        )
        return next(filter(None, found), "")

    @property
    def nodes(self) -> str:
        """The machines the pairs were made on; "": this one."""
        return ", ".join(sorted({node_of(self.candidate[s]) for s in self._seeds()} - {""}))

    def late(self, pairs: int) -> str:
        """Why the budget's minutes are too few to have so many pairs in all; "": they are not."""
        place = "|".join([self.label, key_of(self.configs["candidate"]), f"loss-{pairs}"])
        ahead_s = rounds(self.context, self.missing(pairs)) * self.pair_s()
        announced_s = self.context.announced_s
        late = ahead_s > 0 and self.context.out_of_time_at(place, ahead_s, announced_s)
        return self.context.out_of_time_words() if late else ""

    def lengthen(self, steps: int) -> bool:
        """From now on runs of at least ``steps`` steps; those that are shorter are forgotten and
        made again on demand.

        False, with nothing changed, if the job ends before that or the budget's time is used up.
        """
        records = [*self.reference.values(), *self.candidate.values()]
        if all(len(r.losses) >= steps for r in records):
            return True
        longer = steps / max(len(r.losses) for r in records) - 1
        windows_s = [math.fsum(r.window.times_s) for r in records]
        run_s = fmean(map(max, map(wall_s, records), windows_s)) + longer * fmean(windows_s)
        ahead_s = rounds(self.context, len(self.reference)) * 2 * run_s
        if any(r.ended_early for r in records) or self.context.out_of_time_at(
            self._longer(steps), ahead_s
        ):
            return False
        self._fresh.steps = steps
        self.label = f"{self.label}-{steps}"
        self.reference, self.candidate = {}, {}
        return True

    def _longer(self, steps: int) -> str:
        """What the journal calls the choice whether there is time for longer runs."""
        return "|".join([self.label, key_of(self.configs["candidate"]), str(steps)])

    def float16_gradient(self) -> tuple[float, float] | None:
        """Relative errors of the first gradient against the reference's: (the candidate's,
        bfloat16's).

        None where the candidate is not float16, or the first step gave no gradient to compare. The
        candidate is run at
        the loss scale it settled at: the first scale is too high on purpose and overflows.
        """
        if self.configs["candidate"].get("amp_dtype") != "float16" or not self.candidate:
            return None
        seed = min(self.candidate)
        settled = self.candidate[seed].notes.get("loss_scale")
        exact = self.reference[seed].gradient_sketch
        half = self._first_steps("float16", self.configs["candidate"], seed, settled)
        brain = self._first_steps(
            "bfloat16", {**self.configs["candidate"], "amp_dtype": "bfloat16"}, seed, None
        )
        errors = (
            relative_error(exact, half.gradient_sketch),
            relative_error(exact, brain.gradient_sketch),
        )
        return None if errors[0] is None or errors[1] is None else (errors[0], errors[1])

    def log_speedups(self) -> list[float]:
        """log(time a sample of the reference / of the candidate), one a pair; positive is faster."""
        return [math.log(a / b) for a, b in map(self._costs_of, self._seeds())]

    def second_gain(self) -> LogRatio | None:
        """By the second objective, as the pairs alone tell it; None where there is none, or its
        counters could not be read.
        """
        objective = self.context.spec.second_objective
        records = (r for s in self._seeds() for r in (self.reference[s], self.candidate[s]))
        if not objective or (
            objective == "energy" and not all(math.fsum(r.window.joules) > 0 for r in records)
        ):
            return None
        costs = [self.costs(self.reference[s], self.candidate[s], objective) for s in self._seeds()]
        ratios = [math.log(a / b) for a, b in costs]
        error = stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf
        return LogRatio(fmean(ratios), error, len(ratios))

    def log_levels(self) -> list[float]:
        """How slow the machine was during each pair, log units: the mean of its two log costs, less
        what is usual on the machine it ran on.
        """
        levels = {s: fmean(map(math.log, self._costs_of(s))) for s in self._seeds()}
        nodes = {s: node_of(self.candidate[s]) for s in levels}
        usual = {
            node: median(levels[s] for s in levels if nodes[s] == node) for node in nodes.values()
        }
        return [level - usual[nodes[s]] for s, level in levels.items()]

    def gain(self, noise: float) -> LogRatio:
        """Mean log speed-up with its error; positive is faster.

        Args:
            noise: standard deviation of one block's log cost in the baseline. It steadies the error
                of few pairs, as far as four short blocks can tell.
        """
        ratios = self.log_speedups()
        count = len(ratios)
        own = noise_of([math.exp(r) for r in ratios]) if count > 1 else 0.0
        free = max(count - 2, 1) if count > 1 else 0  # noise_of takes a drift out
        usual = math.sqrt(2) * min(noise, MOST_NOISE)
        variance = (USUAL_PAIRS * usual**2 + free * own**2) / (USUAL_PAIRS + free)
        return LogRatio(fmean(ratios), math.sqrt(variance / count), count)

    def anatomies(self) -> tuple[Anatomy, Anatomy]:
        """(reference, candidate), of the last pair."""
        last = max(self._seeds())
        runs = self.reference[last], self.candidate[last]
        return _anatomy(runs[0], _later(*runs)), _anatomy(runs[1], _later(*runs))

    def costs(
        self, reference: Record, candidate: Record, objective: str = ""
    ) -> tuple[float, float]:
        """What a sample costs each of two runs: seconds, epoch ends included, or joules. Both are
        taken over the same part of the job: from the second epoch on where both reach it.

        Args:
            objective: the job's own, where it is left out.
        """
        objective = objective or self.context.spec.objective
        later = _later(reference, candidate)
        if objective == "energy":
            return _joules(reference, later), _joules(candidate, later)
        costs = self._cost(reference, later), self._cost(candidate, later)
        if objective == "throughput":
            return costs
        samples = self._planned_samples(reference)
        beside = asides(reference.window, candidate.window) or (0.0, 0.0)
        return (
            self._training_s(reference, costs[0] + beside[0], later, samples) / samples,
            self._training_s(candidate, costs[1] + beside[1], later, samples, self.cold_s)
            / samples,
        )

    def training_time(self, speedup: float) -> TrainingTime | None:
        """How long the planned training takes with each side, where the candidate is ``speedup``
        times as fast by the objective; None: it is not known how long the runs took as a whole.
        """
        seeds = list(self._seeds())
        if not all(wall_s(self.reference[s]) and wall_s(self.candidate[s]) for s in seeds):
            return None
        before_s, after_s, cold_s = (
            fmean(each)
            for each in zip(*(self._trainings_s(s, speedup) for s in seeds), strict=True)
        )
        if self.context.spec.objective in WHOLE_TRAINING:
            after_s, cold_s = before_s / speedup - (cold_s - after_s), before_s / speedup
        whole = all(asides(self.reference[s].window, self.candidate[s].window) for s in seeds)
        return TrainingTime(self.context.spec.planned_steps, before_s, after_s, cold_s, whole)

    def _trainings_s(self, seed: int, speedup: float) -> tuple[float, float, float]:
        """By one pair: before, after, and after where nothing has been compiled yet."""
        reference, candidate = self.reference[seed], self.candidate[seed]
        later, samples = _later(reference, candidate), self._planned_samples(reference)
        cost = self._cost(reference, later)
        of_energy = self.context.spec.objective == "energy"  # then speedup is none of time
        faster = self._cost(candidate, later) if of_energy else cost / speedup
        beside = asides(reference.window, candidate.window) or (0.0, 0.0)
        cost, faster = cost + beside[0], faster + beside[1]
        return (
            self._training_s(reference, cost, later, samples),
            self._training_s(candidate, faster, later, samples),
            self._training_s(candidate, faster, later, samples, self.cold_s),
        )

    def _planned_samples(self, reference: Record) -> float:
        return self.context.spec.planned_steps * mean_samples(reference.window)

    def _training_s(
        self, record: Record, cost: float, later_epochs: bool, samples: float, cold_s: float = 0.0
    ) -> float:
        """The planned training, ``samples`` in all, at ``cost`` seconds each."""
        start = first_counted(record.window, later_epochs=later_epochs)
        return training_s(
            record.window,
            run_s=wall_s(record),
            cost=cost,
            samples=samples,
            once_s=max(start_up_excess(record.window, start), cold_s),
        )

    def _costs_of(self, seed: int) -> tuple[float, float]:
        return self.costs(self.reference[seed], self.candidate[seed])

    @property
    def interleaved(self) -> bool:
        """All runs were made in slices."""
        sides = (self.reference, self.candidate)
        return all(SLICES in side[seed].notes for seed in self._seeds() for side in sides)

    @property
    def first_epoch_only(self) -> bool:
        """No run came to the end of an epoch, and the job as it is planned does."""
        windows = [r.window for s in self._seeds() for r in (self.reference[s], self.candidate[s])]
        return not any(w.turnovers_s for w in windows) and any(
            w.epoch_iterations is not None and w.epoch_iterations < self.context.spec.planned_steps
            for w in windows
        )

    def pair_s(self) -> float:
        """Seconds a pair took as a rule, starts and ends included; 0.0: not known."""
        pairs = [wall_s(self.reference[s]) + wall_s(self.candidate[s]) for s in self._seeds()]
        return median(pairs) if pairs else 0.0

    def _cost(self, record: Record, later_epochs: bool) -> float:
        return cost_of_run(
            record.window, later_epochs=later_epochs, turnover_s=self._turnover_s(record)
        )

    def _turnover_s(self, record: Record) -> float | None:
        """Mean time lost at an epoch's end. A window shorter than an epoch holds none: then that of
        the side's other runs, or what starting the workers took, where every epoch does that.
        Workers that stay begin with the epoch, too: a batch takes one of them as long as all take
        for a batch each, at most.
        """
        sides = (self.candidate, self.reference)
        side = next((s.values() for s in sides if any(r is record for r in s.values())), [record])
        own = mean_turnover_s(record.window)
        seen = own if own is not None else mean_turnover_s(*(r.window for r in side))
        loader = (record.notes.get("in_force") or {}).get("loader") or {}
        workers = loader.get("num_workers") or 0
        if seen is not None or not workers:
            return seen
        start_s = min(start_of_workers_s(r.window) for r in side)
        if restarts_workers(workers, loader.get("persistent_workers")):
            return start_s
        batch_s = winsorized_mean(record.window.times_s, rounds_of=workers)
        return min(start_s, workers * batch_s)

    def _seeds(self) -> Iterator[int]:
        return (s for s in sorted(self.reference) if s in self.candidate)

    def _key(self, side: str, seed: int, again: bool = False) -> str:
        return "|".join(
            [self.label, key_of(self.configs[side]), side, str(seed), "again" if again else ""]
        )

    def _run(self, context: RunContext, side: str, seed: int, again: bool = False) -> Record:
        """One run, made once and remembered."""
        stored = context.stored(self._key(side, seed, again))
        return self._measured(context, side, seed, again) if stored is None else stored

    def _measured(self, context: RunContext, side: str, seed: int, again: bool = False) -> Record:
        """One run, made now and put in the journal.

        Raises:
            SessionFailed: also where a run of the candidate is too short to be timed: its own
                failure, and not the job's.
            BaselineError: of the unchanged job.
        """
        config, label = self.configs[side], self._label(side, seed, again)
        try:
            if again or not self.timed:
                record = self._fresh.untimed(context.executor, config, seed, label)
            else:
                calm = self._calm(context, side)
                with _own_failure(config):
                    record = self._fresh.run(context.executor, config, seed, label, calm)
        except SessionFailed as failure:
            if config or (failure.kind == "lost" and context.executor.node):
                raise
            raise explain_failure(context, failure) from failure
        if self.timed and context.spec.objective == "energy":
            joules_per_sample(record.window)  # a run without is not kept: it is made again
        self._keep(context, side, seed, record, again)
        context.stop.check()
        return record

    def _calm(self, context: RunContext, side: str) -> list[Window]:
        """Windows of this side made before, on the same machine."""
        records = tuple(getattr(self, side).values())
        return [r.window for r in records if node_of(r) == context.executor.node]

    def _keep(
        self, context: RunContext, side: str, seed: int, record: Record, again: bool = False
    ) -> None:
        name = context.keep_record(self._label(side, seed, again), record)
        context.journal.append("run", self._key(side, seed, again), {"record": name})

    def _label(self, side: str, seed: int, again: bool = False) -> str:
        return f"{self.label}-{side}-{seed}{'-again' if again else ''}"

    def _first_steps(
        self, name: str, config: Config, seed: int, loss_scale: float | None
    ) -> Record:
        label = f"{self.label}-gradient-{name}"
        key = "|".join([label, key_of(config), str(seed)])

        def measure(context: RunContext) -> Record:
            return self._fresh.first_steps(context.executor, config, seed, label, loss_scale)

        return self.context.recorded(
            key, label, lambda: self._beside(self.reference[seed], measure)
        )

    def _beside(self, reference: Record, measure: Callable[[RunContext], Record]) -> Record:
        """A run on the machine of ``reference``; should that be lost meanwhile, on another one of
        its kind.
        """
        try:
            return measure(on_node(self.context, node_of(reference)))
        except SessionFailed as failure:
            if failure.kind != "lost":
                raise
            self.context.progress.warning(
                f"{failure.detail}: what was being measured there is measured again"
            )
            return measure(self.context)


class SharedBaseline(Pairs):
    """Another candidate against the baseline runs that ``pairs`` has already made: for the loss
    only, since the two sides no longer stand side by side in time."""

    timed = False

    def __init__(self, pairs: Pairs, candidate: Config, label: str) -> None:
        super().__init__(pairs.context, candidate, {}, label)
        self._shared = pairs
        self._fresh.steps = pairs._fresh.steps

    def ensure(self, pairs: int) -> None:
        """At most as many pairs as the shared baseline has."""
        for seed in sorted(self._shared.reference)[:pairs]:
            if seed not in self.candidate:
                self.context.progress.fixed_run(
                    self.label, len(self.candidate) + 1, pairs, self.configs["candidate"]
                )
                reference = self._shared.reference[seed]
                self.candidate[seed] = self._beside(
                    reference, partial(self._run, side="candidate", seed=seed)
                )
                self.reference[seed] = reference

    def repeat_reference(self, seed: int) -> Record:
        return self._shared.repeat_reference(seed)

    def late(self, pairs: int) -> str:
        return ""  # only as many as there are

    def lengthen(self, steps: int) -> bool:
        return False


@contextmanager
def _own_failure(config: Config) -> Iterator[None]:
    """A run of the candidate that is too short to be timed has failed; one of the unchanged job
    ends everything.
    """
    try:
        yield
    except BaselineError as error:
        if not config:
            raise
        raise SessionFailed("ended", error.found) from error


def node_of(record: Record) -> str:
    """The machine a run was made on; "": this one."""
    return str(record.notes.get(NODE, ""))


def on_node(context: RunContext, node: str) -> RunContext:
    """``context`` with the lane on ``node``. If that is not there any more: as it is, and so on
    another machine of the same kind.
    """
    lane = context.executor.lane(node)
    return context if lane is None else replace(context, executor=lane)


def _joules(record: Record, later_epochs: bool) -> float:
    """A sample takes; the machine's counters say so."""
    window = record.window
    return joules_per_sample(drop_start(window, first_counted(window, later_epochs=later_epochs)))


def _later(*records: Record) -> bool:
    """Whether all of them reach the job's second epoch."""
    return all(later_epoch(record.window) is not None for record in records)


def _anatomy(record: Record, later_epochs: bool) -> Anatomy:
    start = first_counted(record.window, later_epochs=later_epochs)
    return anatomy(drop_start(record.window, start), start)
