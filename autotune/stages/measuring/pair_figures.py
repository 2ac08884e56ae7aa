"""What pairs of runs show: speed-ups and their error, where time goes, the length of a training.

a record  ──▶  cost a sample: seconds (epoch ends included), joules, or seconds of the whole training
a pair    ──▶  log(reference's / candidate's)
pairs     ──▶  mean log speed-up ± error
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from autotune.executors.base import NODE
from autotune.executors.interleave import SLICES
from autotune.job.spec import JobSpec
from autotune.objectives import WHOLE_TRAINING
from autotune.results import Anatomy, TrainingTime
from autotune.stages.measuring.fresh import wall_s
from autotune.verdict.alike import OwnStalls, Values, counted_alike, own_stalls, stalls_alike
from autotune.verdict.iterations import first_counted, later_epoch, mean_samples, with_epoch_of
from autotune.verdict.sequential import levels_by_kind, robust_mean
from autotune.verdict.speedup import BACKED, MINIMUM_GAIN, LogRatio, noise_of
from autotune.verdict.timing import (
    anatomy,
    cost_of_counted,
    joules_per_sample,
    mean_turnover_s,
    restarts_workers,
    start_of_workers_s,
    start_up_excess,
    winsorized_mean,
)
from autotune.verdict.training_time import evaluation_costs, training_s
from autotune_trials.protocol.messages import Record

# The noise in OBSERVE's blocks weighs as much as this many pairs. More than 5% comes from a single
# block: a run's window is many times as long.
USUAL_PAIRS, MOST_NOISE = 3, 0.05
VALUES: dict[str, Values] = {  # what is counted, by objective
    "throughput": lambda window: window.times_s,
    "energy": lambda window: window.joules or (0.0,),
}


class PairFigures:
    """Reads figures from the records of both sides, which others continue to fill.

    Attributes:
        reference, candidate: seed -> record.
        cold_s: lower bound of the candidate's extra start-up time with nothing compiled yet.
    """

    def __init__(
        self,
        spec: JobSpec,
        reference: Mapping[int, Record],
        candidate: Mapping[int, Record],
        cold_s: float = 0.0,
    ) -> None:
        self._spec, self.cold_s = spec, cold_s
        self.reference, self.candidate = reference, candidate
        # objective -> runs of both sides, and the stalls found in them
        self._stalls: dict[str, tuple[tuple[tuple[Record, ...], ...], list[OwnStalls]]] = {}

    @property
    def seeds(self) -> list[int]:
        """Seeds of the pairs that have both runs."""
        return sorted(self.reference.keys() & self.candidate.keys())

    def costs(
        self, reference: Record, candidate: Record, objective: str = ""
    ) -> tuple[float, float]:
        """Cost per sample of two runs: seconds, epoch ends included, or joules.

        Both are taken over the same part of the job (:mod:`autotune.verdict.alike`): from the
        second epoch on if both reach it.

        Args:
            objective: defaults to the job's own.
        """
        objective = objective or self._spec.objective
        later = _later(reference, candidate)
        if objective == "energy":
            return self._pair_joules(reference, candidate, later)
        costs = self._pair_costs(reference, candidate, later)
        if objective == "throughput":
            return costs
        samples = self._planned_samples(reference)
        evaluation = evaluation_costs(reference.window, candidate.window) or (0.0, 0.0)
        return (
            self._training_s(reference, costs[0] + evaluation[0], later, samples) / samples,
            self._training_s(candidate, costs[1] + evaluation[1], later, samples, self.cold_s)
            / samples,
        )

    def log_speedups(self) -> list[float]:
        """One log(cost of the reference / of the candidate) per pair; positive is faster."""
        return [math.log(a / b) for a, b in map(self._costs_of, self.seeds)]

    def gain(self, noise: float) -> LogRatio:
        """Mean log speed-up with its error; positive is faster.

        Args:
            noise: standard deviation of one block's log cost in the baseline. It steadies the error
                of few pairs, as far as four short blocks can.
        """
        ratios = self.log_speedups()
        count = len(ratios)
        own = noise_of([math.exp(r) for r in ratios]) if count > 1 else 0.0
        free = max(count - 2, 1) if count > 1 else 0  # noise_of removes a drift
        usual = math.sqrt(2) * min(noise, MOST_NOISE)
        variance = (USUAL_PAIRS * usual**2 + free * own**2) / (USUAL_PAIRS + free)
        return LogRatio(fmean(ratios), math.sqrt(variance / count), count)

    def second_gain(self) -> LogRatio | None:
        """Gain by the second objective, from the pairs alone.

        None if there is none, or its counters could not be read.
        """
        objective = self._spec.second_objective
        records = (r for s in self.seeds for r in (self.reference[s], self.candidate[s]))
        if not objective or (
            objective == "energy" and not all(math.fsum(r.window.joules) > 0 for r in records)
        ):
            return None
        costs = [self.costs(self.reference[s], self.candidate[s], objective) for s in self.seeds]
        ratios = [math.log(a / b) for a, b in costs]
        error = stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf
        return LogRatio(fmean(ratios), error, len(ratios))

    def log_levels(self) -> list[float]:
        """How slow the machine was during each pair, in log units, beside others that ran on the
        same machine and in the same order.
        """
        levels = [fmean(map(math.log, self._costs_of(s))) for s in self.seeds]
        kinds = [(node_of(self.candidate[s]), self._order(s)) for s in self.seeds]
        return levels_by_kind(levels, kinds)

    def _order(self, seed: int) -> int:
        """Which side of a pair ran first; always 0 if they ran in slices."""
        return 0 if SLICES in self.candidate[seed].notes else seed % 2

    def anatomies(self) -> tuple[Anatomy, Anatomy]:
        """(reference, candidate), of the last pair."""
        last = max(self.seeds)
        runs = self.reference[last], self.candidate[last]
        windows = [run.window for run in runs]
        parts = counted_alike(windows, later_epochs=_later(*runs))
        stalls = stalls_alike(windows, parts, self._own_stalls())
        first, second = (
            anatomy(part, start, stalls=each)
            for (start, part), each in zip(parts, stalls, strict=True)
        )
        return first, second

    @property
    def first_epoch_only(self) -> bool:
        """Whether a pair could not be compared beyond the first epoch although the job has more."""
        return any(
            w.epoch_iterations is not None and w.epoch_iterations < self._spec.planned_steps
            for s in self.seeds
            for w in (self.reference[s].window, self.candidate[s].window)
            if not w.turnovers_s
        )

    def no_gain_with_evaluation(self) -> float | None:
        """How many times as long a sample takes with the candidate once evaluation and saving
        count, if that is no gain worth a change; None: it is one within the error, or no run
        reached any.
        """
        ratios = []
        for seed in self.seeds:
            runs = self.reference[seed], self.candidate[seed]
            evaluation = evaluation_costs(runs[0].window, runs[1].window)
            if evaluation is not None:
                costs = self._pair_costs(*runs, _later(*runs))
                ratios.append(math.log((costs[1] + evaluation[1]) / (costs[0] + evaluation[0])))
        if len(ratios) < 2:
            return None
        centre, error, _ = robust_mean(ratios)
        return math.exp(centre) if centre - error > -math.log1p(MINIMUM_GAIN) else None

    def no_gain_with_stalls(self) -> float | None:
        """The speed-up if no stall of an iteration is reduced, where the candidate stalls more than
        the reference in all pairs but one and this leaves less than :data:`BACKED` of the gain;
        None otherwise.

        What is compiled anew once, at the same iteration in most runs, is no such stall.
        """
        usual = self.log_speedups()
        pairs = [(self.reference[s], self.candidate[s]) for s in self.seeds]
        costs = [self._pair_costs(*pair, _later(*pair), reduced=False) for pair in pairs]
        full = [math.log(a / b) for a, b in costs]
        more = sum(b < a for a, b in zip(usual, full, strict=True))
        if more < len(usual) - 1 or len(usual) < 2:
            return None
        # not weighted by levels: a pair is slow by the very stalls
        gains = [robust_mean(each)[0] for each in (usual, full)]
        return math.exp(gains[1]) if gains[1] < BACKED * gains[0] else None

    def training_time(self, speedup: float) -> TrainingTime | None:
        """How long the planned training takes with each side.

        None if the runs' total times are unknown. ``speedup``: how many times as fast the candidate
        is by the objective.
        """
        seeds = self.seeds
        if not all(wall_s(self.reference[s]) and wall_s(self.candidate[s]) for s in seeds):
            return None
        before_s, after_s, cold_s = (
            fmean(each)
            for each in zip(*(self._trainings_s(s, speedup) for s in seeds), strict=True)
        )
        if self._spec.objective in WHOLE_TRAINING:
            after_s, cold_s = before_s / speedup - (cold_s - after_s), before_s / speedup
        whole = all(
            evaluation_costs(self.reference[s].window, self.candidate[s].window) for s in seeds
        )
        return TrainingTime(self._spec.planned_steps, before_s, after_s, cold_s, whole)

    def _trainings_s(self, seed: int, speedup: float) -> tuple[float, float, float]:
        """From one pair: before, after, and after with nothing compiled yet."""
        reference, candidate = self.reference[seed], self.candidate[seed]
        later, samples = _later(reference, candidate), self._planned_samples(reference)
        cost, faster = self._pair_costs(reference, candidate, later)
        if self._spec.objective != "energy":  # then the speed-up is not one of time
            faster = cost / speedup
        evaluation = evaluation_costs(reference.window, candidate.window) or (0.0, 0.0)
        cost, faster = cost + evaluation[0], faster + evaluation[1]
        return (
            self._training_s(reference, cost, later, samples),
            self._training_s(candidate, faster, later, samples),
            self._training_s(candidate, faster, later, samples, self.cold_s),
        )

    def _planned_samples(self, reference: Record) -> float:
        return self._spec.planned_steps * mean_samples(reference.window)

    def _training_s(
        self, record: Record, cost: float, later_epochs: bool, samples: float, cold_s: float = 0.0
    ) -> float:
        """Seconds of the planned training: ``samples`` in all, at ``cost`` seconds each."""
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

    def _pair_costs(
        self, reference: Record, candidate: Record, later_epochs: bool, reduced: bool = True
    ) -> tuple[float, float]:
        """Seconds per sample of both. ``reduced``: see :func:`.stalls_alike`.

        A window may hold an epoch's end that the other's just misses: then it counts for both, if
        neither has workers to start.
        """
        records = reference, candidate
        turnovers = [self._turnover_s(record) for record in records]
        if not any(map(_workers, records)):
            seen = next((t for t in turnovers if t is not None), None)
            turnovers = [seen if t is None else t for t in turnovers]
        windows = [record.window for record in records]
        parts = counted_alike(
            [with_epoch_of(own, other) for own, other in zip(windows, windows[::-1], strict=True)],
            later_epochs=later_epochs,
        )
        stalls = stalls_alike(windows, parts, self._own_stalls(), reduced=reduced)
        first, second = (
            cost_of_counted(part, turnover_s=turnover, stalls=each)
            for (_, part), turnover, each in zip(parts, turnovers, stalls, strict=True)
        )
        return first, second

    def _pair_joules(
        self, reference: Record, candidate: Record, later_epochs: bool
    ) -> tuple[float, float]:
        """Joules per sample of both, by the machine's counters."""
        windows = reference.window, candidate.window
        parts = counted_alike(windows, later_epochs=later_epochs)
        stalls = stalls_alike(windows, parts, self._own_stalls("energy"), VALUES["energy"])
        first, second = (
            joules_per_sample(part, each) for (_, part), each in zip(parts, stalls, strict=True)
        )
        return first, second

    def _own_stalls(self, objective: str = "throughput") -> list[OwnStalls]:
        """The stalls of each side that are its own; looked for again only with further runs."""
        sides = tuple(self.reference.values()), tuple(self.candidate.values())
        before, found = self._stalls.get(objective, (((), ()), [OwnStalls(), OwnStalls()]))
        if [list(map(id, side)) for side in before] != [list(map(id, side)) for side in sides]:
            found = own_stalls(
                [[record.window for record in side] for side in sides], VALUES[objective]
            )
            self._stalls[objective] = sides, found
        return found

    def _turnover_s(self, record: Record) -> float | None:
        """Mean time lost at an epoch's end.

        A window shorter than an epoch has none. Then it is that of the side's other runs, or the
        time to start the workers if every epoch does that. Persistent workers begin again with the
        epoch, too: one batch takes one of them at most as long as all need for a batch each.
        """
        sides = (self.candidate, self.reference)
        side = next((s.values() for s in sides if any(r is record for r in s.values())), [record])
        own = mean_turnover_s(record.window)
        seen = own if own is not None else mean_turnover_s(*(r.window for r in side))
        workers = _workers(record)
        if seen is not None or not workers:
            return seen
        start_s = min(start_of_workers_s(r.window) for r in side)
        if restarts_workers(workers, _loader(record).get("persistent_workers")):
            return start_s
        batch_s = winsorized_mean(record.window.times_s, rounds_of=workers)
        return min(start_s, workers * batch_s)


def node_of(record: Record) -> str:
    """The machine a run was made on; "": this one."""
    return str(record.notes.get(NODE, ""))


def _loader(record: Record) -> dict[str, Any]:
    """The loader's settings in force."""
    return (record.notes.get("in_force") or {}).get("loader") or {}


def _workers(record: Record) -> int:
    return _loader(record).get("num_workers") or 0


def _later(*records: Record) -> bool:
    """Whether all of them reach the job's second epoch."""
    return all(later_epoch(record.window) is not None for record in records)
