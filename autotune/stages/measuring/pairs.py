"""A candidate and a reference in fresh processes, interleaved; each run serves both verdicts.

    pair 0: R C │ pair 1: C R │ pair 2: R C │ …        every letter a new process of the job; pair i runs with seed i

The order alternates so that neither side profits from a machine that warms up or fills its caches.
The two runs of a pair are neighbors in time, so that their speed can be compared, and have the
same seed, so that their losses can be compared. If two processes may be alive at once they train in
slices (may_interleave.py), otherwise one after the other. On a cluster several pairs are made at the
same time, each on a machine of its own (lanes.py): a ratio always compares two runs on the same
machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from autotune.errors import BaselineError
from autotune.executors.base import Executor, SessionFailed
from autotune.executors.interleave import SLICES
from autotune.job.configs import key_of
from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import FreshRuns, rounds, wall_s
from autotune.stages.measuring.lanes import MOST_LOST, spread
from autotune.stages.measuring.may_interleave import (
    crossed,
    keep_decision,
    may_interleave,
    stop_interleaving,
    unrecorded_files,
)
from autotune.stages.measuring.memory_limits import beyond_limits
from autotune.stages.measuring.pair_figures import PairFigures, node_of
from autotune.stages.observe import explain_failure
from autotune.verdict.gradients import relative_error
from autotune.verdict.timing import joules_per_sample
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Record, Window

PROCESS_PAIRS = 3  # to try a value that needs a new process


@dataclass(frozen=True, eq=False)
class Seed:
    """A pair to be made."""

    seed: int


class Pairs:
    """Runs of both sides, made on demand and stored in the journal.

    Attributes:
        reference, candidate: seed -> record.
        figures: what the pairs made so far show.
    """

    timed = True  # False: for the losses only

    def __init__(
        self,
        context: RunContext,
        candidate: Config,
        reference: Config,
        label: str,
        cold_s: float = 0.0,
    ) -> None:
        """``cold_s``: least extra start-up time of the candidate with nothing compiled yet.

        These runs find the kernels of the search.
        """
        self.context, self.label = context, label
        self.stretched = 1  # times convergence.steps over which the loss is compared
        self.configs = {"reference": dict(reference), "candidate": dict(candidate)}
        self.reference: dict[int, Record] = {}
        self.candidate: dict[int, Record] = {}
        self.figures = PairFigures(context.spec, self.reference, self.candidate, cold_s)
        place = "|".join(
            [label, key_of(self.configs["candidate"]), key_of(self.configs["reference"])]
        )
        self._fresh = FreshRuns(context, context.spec.convergence.steps, place)

    def ensure(self, pairs: int) -> None:
        """Make runs until there are at least ``pairs`` pairs.

        Raises:
            SessionFailed: a run of the candidate failed, or is too short to be timed.
            BaselineError: the unchanged job failed twice, or is too short to be timed.
        """
        missing = [
            Seed(s) for s in range(pairs) if s not in self.reference or s not in self.candidate
        ]
        if not missing:
            return
        with self._failure_kept(pairs):
            self._make(missing, pairs)

    @contextmanager
    def _failure_kept(self, pairs: int) -> Iterator[None]:
        """Keep a failure of the candidate in the journal: a resumed run must not forget it.

        Raises:
            SessionFailed: it failed, now or in an earlier process of this run.
        """
        journal, sides = self.context.journal, map(key_of, self.configs.values())
        place = "|".join([self.label, *sides])
        known = journal.find("pairs-failed", place)
        if known is not None and pairs >= known["pairs"]:
            raise SessionFailed(known["kind"], known["detail"])
        try:
            yield
        except SessionFailed as failure:
            if failure.kind != "lost":
                told = {"pairs": pairs, "kind": failure.kind, "detail": failure.detail}
                journal.append("pairs-failed", place, told)
            raise

    def _make(self, missing: Sequence[Seed], pairs: int) -> None:
        pieces_left = iter(missing)

        def serve(lane: RunContext, pieces: Iterator[Seed]) -> None:
            for piece in pieces:
                self._pair(lane, piece.seed, pairs)

        def give_up(piece: Seed, failure: SessionFailed) -> None:
            raise SessionFailed(
                "lost",
                f"pair {piece.seed} lost its machine {MOST_LOST} times; the last time:"
                f" {failure.detail}",
            )

        spread(self.context, lambda: next(pieces_left, None), serve, give_up)

    def first_candidate(self) -> Record:
        """Make one run of the candidate by itself.

        :meth:`ensure` does not count it as half a pair, and makes both runs.

        Raises:
            SessionFailed: it failed.
        """
        self.context.progress.fixed_run(f"{self.label}: candidate", 1, 2, self.configs["candidate"])
        with self._failure_kept(0):
            return self._run(self.context, "candidate", 0)

    def _pair(self, context: RunContext, seed: int, pairs: int) -> None:
        """Make both runs of one seed on one machine; a run from another one is measured again."""
        order = ("reference", "candidate") if seed % 2 == 0 else ("candidate", "reference")
        mine = {side: getattr(self, side).get(seed) for side in order}
        known = {side: mine[side] or context.stored(self._key(side, seed)) for side in order}
        if any(record is None for record in known.values()):
            known = mine  # half a pair of an earlier process has no neighbor in time
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
        """Make both runs of one seed in slices. {}: they have to be made one after the other.

        Raises:
            SessionFailed, BaselineError: as :meth:`_measured`, if a run is too short.
        """
        if not (self.timed and may_interleave(context, *self.configs.values())):
            return {}
        label, config = self._shown(f"with run {2 * seed + 2}, in slices")
        context.progress.fixed_run(label, 2 * seed + 1, 2 * pairs, config)
        try:
            records = self._fresh.interleaved(
                [self._executor(context, side) for side in order],
                [self.configs[side] for side in order],
                seed,
                [self._label(side, seed) for side in order],
                [self._calm(context, side) for side in order],
            )
        except SessionFailed as failure:
            context.stop.check_after(failure.kind)
            stop_interleaving(context, failure)
            return {}
        if why := crossed(records) or self._written(context):  # for the first time
            keep_decision(context, why)
            return {}
        made = dict(zip(order, records, strict=True))
        for side, record in made.items():
            self._require_enough(side, record)
        for side, record in made.items():
            self._keep(context, side, seed, record)
        context.stop.check()
        return made

    def _executor(self, context: RunContext, side: str) -> Executor:
        """Where an interleaved run of this side is made."""
        return context.executor

    def _written(self, context: RunContext) -> str:
        """Why no further runs may be interleaved, by the files that these have written."""
        return unrecorded_files(context.run_dir, context.spec.workdir)

    def _require_enough(self, side: str, record: Record) -> None:
        """Check that an interleaved run can be timed.

        Raises:
            SessionFailed, BaselineError: as :meth:`_measured`.
        """
        with _own_failure(self.configs[side]):
            self._fresh.require_enough(record, self.configs[side])

    def _shown(self, side: str) -> tuple[str, Config | None]:
        """The label and settings shown while a run of this side, or of both, is made."""
        return f"{self.label}: {side}", self.configs.get(side, self.configs["candidate"])

    def missing(self, pairs: int) -> int:
        """How many of ``pairs`` pairs are not in the journal yet.

        Pairs of this label and these two configurations count, also those of an earlier process of
        this run.
        """
        return sum(
            any(self.context.stored(self._key(side, seed)) is None for side in self.configs)
            for seed in range(pairs)
        )

    def repeat_reference(self, seed: int) -> Record:
        """Repeat the reference with the same seed: is the job deterministic?

        It runs on the same machine if that is still there.
        """
        return self._beside(
            self.reference[seed], partial(self._run, side="reference", seed=seed, again=True)
        )

    def beyond_limits(self, observation: Observation) -> str:
        """How the candidate exceeded the job's memory constraints; "": it did not."""
        limits, device = self.context.spec.constraints, observation.job.device
        own_gib = max(r.window.peak_memory_gib for r in self.reference.values())
        found = (
            beyond_limits(limits, observation.machine, device, record.window, own_gib)
            for record in self.candidate.values()
        )
        return next(filter(None, found), "")

    @property
    def useless(self) -> dict[str, str]:
        """Knobs that differ between the sides and had no effect in a run of the candidate -> why."""
        before, after = self.configs["reference"], self.configs["candidate"]
        found = {
            n: why for record in self.candidate.values() for n, why in record.no_effect.items()
        }
        return {
            name: why
            for name, why in found.items()
            if name in after and (name not in before or before[name] != after[name])
        }

    @property
    def idle(self) -> dict[str, str]:
        """Those that had none at all: in no run, and see ``Record.idle``."""
        return {
            name: why
            for name, why in self.useless.items()
            if all(name in record.idle for record in self.candidate.values())
        }

    @property
    def nodes(self) -> str:
        """The machines the pairs were made on; "": this one."""
        return ", ".join(sorted({node_of(self.candidate[s]) for s in self.figures.seeds} - {""}))

    def late(self, pairs: int) -> str:
        """Why the budget's minutes do not suffice for ``pairs`` pairs in all; "": they do."""
        place = "|".join([self.label, key_of(self.configs["candidate"]), f"loss-{pairs}"])
        ahead_s = rounds(self.context, self.missing(pairs)) * self.pair_s()
        announced_s = self.context.announced_s
        late = ahead_s > 0 and self.context.out_of_time_at(place, ahead_s, announced_s)
        return self.context.out_of_time_words() if late else ""

    def lengthen(self, steps: int) -> bool:
        """Make runs of at least ``steps`` steps from now on; shorter ones are made again on demand.

        All runs made so far are dropped if one of them is shorter. False, with nothing changed, if
        the job ends before that or the budget's time is used up.
        """
        records = [*self.reference.values(), *self.candidate.values()]
        needed = self._fresh.steps_of(self.configs["candidate"], steps)
        if all(len(r.losses) >= steps for r in self.reference.values()) and all(
            len(r.losses) >= needed for r in self.candidate.values()
        ):
            self._fresh.steps = max(self._fresh.steps, steps)
            return True
        longer = steps / max(len(r.losses) for r in self.reference.values()) - 1
        windows_s = [math.fsum(r.window.times_s) for r in records]
        run_s = fmean(map(max, map(wall_s, records), windows_s)) + longer * fmean(windows_s)
        ahead_s = rounds(self.context, len(self.reference)) * 2 * run_s
        if any(r.ended_early for r in records) or self.context.out_of_time_at(
            self._longer(steps), ahead_s
        ):
            return False
        self._fresh.steps = steps
        self.label = f"{self.label}-{steps}"
        self.reference.clear()
        self.candidate.clear()
        return True

    def _longer(self, steps: int) -> str:
        """Journal key of the decision whether there is time for longer runs."""
        return "|".join([self.label, key_of(self.configs["candidate"]), str(steps)])

    def float16_gradient(self) -> tuple[float, float] | None:
        """Relative errors of the first gradient against the reference's.

        Returns (the candidate's, bfloat16's). None if the candidate is not float16, or the first
        step gave no gradient to compare. The candidate runs at the loss scale it settled at: the
        first scale is too high on purpose and overflows.
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

    @property
    def interleaved(self) -> bool:
        """Whether all runs were made in slices."""
        sides = (self.reference, self.candidate)
        return all(SLICES in side[seed].notes for seed in self.figures.seeds for side in sides)

    def pair_s(self) -> float:
        """Median seconds of a pair, starts and ends included; 0.0: unknown."""
        pairs = [wall_s(self.reference[s]) + wall_s(self.candidate[s]) for s in self.figures.seeds]
        return median(pairs) if pairs else 0.0

    def _key(self, side: str, seed: int, again: bool = False) -> str:
        return "|".join(
            [self.label, key_of(self.configs[side]), side, str(seed), "again" if again else ""]
        )

    def _run(self, context: RunContext, side: str, seed: int, again: bool = False) -> Record:
        """Return one run, made once and stored."""
        stored = context.stored(self._key(side, seed, again))
        return self._measured(context, side, seed, again) if stored is None else stored

    def _measured(self, context: RunContext, side: str, seed: int, again: bool = False) -> Record:
        """Make one run now and put it in the journal.

        Raises:
            SessionFailed: a run of the candidate failed, or is too short to be timed.
            BaselineError: the unchanged job failed, or is too short to be timed.
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
            # raises without joules: the run is not kept, but made again
            joules_per_sample(record.window)
        self._keep(context, side, seed, record, again)
        context.stop.check()
        return record

    def _calm(self, context: RunContext, side: str) -> list[Window]:
        """Earlier windows of this side on the same machine."""
        records = tuple(getattr(self, side).values())
        return [r.window for r in records if node_of(r) == context.executor.node]

    def _keep(
        self, context: RunContext, side: str, seed: int, record: Record, again: bool = False
    ) -> None:
        key, label = self._key(side, seed, again), self._label(side, seed, again)
        context.keep_record(key, label, record)

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
        """Make a run on the machine of ``reference``, or on another of its kind if that is lost."""
        try:
            return measure(on_node(self.context, node_of(reference)))
        except SessionFailed as failure:
            if failure.kind != "lost":
                raise
            self.context.note_lost(failure)
            return measure(self.context)


class SharedBaseline(Pairs):
    """Another candidate against the baseline runs that ``pairs`` has already made.

    For the loss only, since the two sides are no longer neighbors in time.
    """

    timed = False

    def __init__(self, pairs: Pairs, candidate: Config, label: str) -> None:
        super().__init__(pairs.context, candidate, {}, label)
        self._shared = pairs
        self._fresh.steps, self.stretched = pairs._fresh.steps, pairs.stretched

    def ensure(self, pairs: int) -> None:
        """Make runs for ``pairs`` pairs, but no more than the shared baseline has."""
        with self._failure_kept(pairs):
            self._make_candidates(pairs)

    def _make_candidates(self, pairs: int) -> None:
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
        return ""  # it makes no further baseline runs

    def lengthen(self, steps: int) -> bool:
        return False


@contextmanager
def _own_failure(config: Config) -> Iterator[None]:
    """Turn a candidate run that is too short to be timed into a failed session.

    A run of the unchanged job that is too short ends everything.
    """
    try:
        yield
    except BaselineError as error:
        if not config:
            raise
        raise SessionFailed("ended", error.found) from error


def on_node(context: RunContext, node: str) -> RunContext:
    """Return ``context`` with the lane on ``node``.

    If that is gone: ``context`` as it is, and so another machine of the same kind.
    """
    lane = context.executor.lane(node)
    return context if lane is None else replace(context, executor=lane)
