"""A candidate and a reference in fresh processes, interleaved, each run serving both verdicts.

    pair 0: R C │ pair 1: C R │ pair 2: R C │ …        every letter a new process of the job; pair i runs with seed i

The direction alternates so that neither side profits from a machine that warms up or is filled with caches; the two runs of a
pair stand side by side in time (their speed is compared) and have the same seed (their losses are compared).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.errors import BaselineError
from autotune.executors.base import FixedRun
from autotune.job.configs import key_of
from autotune.results import Anatomy
from autotune.stages.bench import Bench
from autotune.verdict.timing import anatomy, cost_per_sample, disturbed, drop_start, start_up_excess, warm_up_end
from autotune_spaces.base import Config
from autotune_trials.protocol import Record

MIN_SECONDS = 4.0  # a timed block shorter than this is at the mercy of single scheduler hiccups (verdicts.md: 4-6 s)
MIN_ITERATIONS = 30  # after warm-up; below this no block is timed
CONFIRM_SHARE = 0.6  # of the whole budget: how long all runs of one confirmation may take together
RUNS_OF_A_CONFIRMATION = 10  # five pairs, the first look
SHORTEST_LIMIT_S = 60.0  # however small the budget: a machine that is busy for a moment must not cut a run short


class Pairs:
    """Runs of both sides, made on demand and remembered in the journal.

    Attributes:
        reference, candidate: seed -> record.
        disturbed_runs: runs measured again because the machine was busy with something else.
    """

    def __init__(self, bench: Bench, candidate: Config, reference: Config, label: str) -> None:
        self.bench, self.label = bench, label
        self.configs = {"reference": dict(reference), "candidate": dict(candidate)}
        self.reference: dict[int, Record] = {}
        self.candidate: dict[int, Record] = {}
        self.disturbed_runs = 0

    def ensure(self, pairs: int) -> None:
        """Have at least ``pairs`` pairs.

        Raises:
            SessionFailed: a run of either side failed.
            BaselineError: the job is too short to be timed.
        """
        for seed in range(pairs):
            order = ("reference", "candidate") if seed % 2 == 0 else ("candidate", "reference")
            for position, side in enumerate(order):
                if seed not in getattr(self, side):
                    self.bench.progress.fixed_run(f"{self.label}: {side}", 2 * seed + position + 1, 2 * pairs, self.configs[side])
                    getattr(self, side)[seed] = self._run(side, seed)

    def repeat_reference(self, seed: int) -> Record:
        """The reference once more with the same seed: is the job deterministic?"""
        return self._run("reference", seed, again=True)

    def log_speedups(self) -> list[float]:
        """log(time a sample of the reference / of the candidate), one a pair; positive is faster."""
        return [math.log(self.cost(self.reference[s]) / self.cost(self.candidate[s])) for s in self._seeds()]

    def anatomies(self) -> tuple[Anatomy, Anatomy]:
        """(reference, candidate), of the last pair."""
        last = max(self._seeds())
        return _anatomy(self.reference[last]), _anatomy(self.candidate[last])

    def cost(self, record: Record) -> float:
        """The objective's cost a sample, in seconds."""
        start = warm_up_end(record.window.times_s)
        cost = cost_per_sample(drop_start(record.window, start))
        if self.bench.spec.objective == "time_to_train":
            samples = sum(record.window.samples) / len(record.window.samples)
            return cost + start_up_excess(record.window, start) / (self.bench.spec.planned_steps * samples)
        return cost

    def _seeds(self) -> Iterator[int]:
        return (s for s in sorted(self.reference) if s in self.candidate)

    def _run(self, side: str, seed: int, again: bool = False) -> Record:
        config = self.configs[side]
        key = "|".join([self.label, key_of(config), side, str(seed), "again" if again else ""])
        stored = self.bench.journal.find("run", key)
        record = self.bench.load_record(stored["record"]) if stored else None
        if record is None:
            record = self._measure(side, config, seed)
            name = self.bench.keep_record(f"{self.label}-{side}-{seed}{'-again' if again else ''}", record)
            self.bench.journal.append("run", key, {"record": name, "config": config, "seed": seed})
        self.bench.stop.check()
        return record

    def _measure(self, side: str, config: Config, seed: int) -> Record:
        request = FixedRun(
            config, seed, steps=self.bench.spec.convergence.steps, min_seconds=MIN_SECONDS,
            max_seconds=self._longest_run_s(), label=f"{self.label}-{side}-{seed}",
        )
        record = self.bench.executor.run_fixed(request)
        calm = [r.window for r in getattr(self, side).values()]
        if disturbed(record.window, calm) is not None:
            self.disturbed_runs += 1
            record = self.bench.executor.run_fixed(request)
        counted = len(record.window.times_s) - warm_up_end(record.window.times_s) if record.window.times_s else 0
        if counted < MIN_ITERATIONS:
            raise BaselineError(
                f"the job ran {len(record.window.times_s)} optimizer steps, {counted} of them after warm-up",
                where=" ".join(self.bench.spec.command), expected=f"at least {MIN_ITERATIONS} after warm-up to time it",
                remedy="raise its number of epochs or steps in job.yaml's command, or budget.minutes if its steps are slow",
            )
        return record

    def _longest_run_s(self) -> float:
        """Keeps a slow job within the budget: the window is then shorter than convergence.steps, and the result says so."""
        return max(SHORTEST_LIMIT_S, CONFIRM_SHARE * self.bench.spec.budget.minutes * 60 / RUNS_OF_A_CONFIRMATION)


def _anatomy(record: Record) -> Anatomy:
    start = warm_up_end(record.window.times_s)
    return anatomy(drop_start(record.window, start), start)
