"""One fresh process of the job, recorded well enough to be compared.

run ── killed from outside? ──▶ again     at most three times in a row; any other failure would recur and is not retried (but once for the unchanged job)
 │
 ├── disturbed by other load? ──▶ again   at most twice, and counted in the result; not if the load stays as it is
 │
 ├── too little left after warm-up? ──▶ the window is extended while the job runs (or run again, longer, if an executor cannot do that)
 │
 └── the second epoch is near? ──▶ likewise, until there is enough of that epoch: it alone counts
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median

from autotune.errors import BaselineError
from autotune.executors.base import WALL_S, Executor, FixedRun, SessionFailed
from autotune.findings.page_faults import FAULT_S
from autotune.results import Observation
from autotune.secrets import mask_command
from autotune.stages.context import KILLS, RunContext
from autotune.verdict.disturbed import SOME_FOREIGN_CORES, disturbed
from autotune.verdict.iterations import WARM_UP_MINIMUM, first_counted, later_epoch
from autotune.verdict.speedup import LOOKS
from autotune.words import duration_words
from autotune_spaces.base import Config, Knob, Scope, SearchSpace, Value
from autotune_trials.diagnosis.classify import KILLED
from autotune_trials.protocol.messages import Record, SessionConfig, Window

# after warm-up; single scheduler hiccups distort a shorter window (less than 4 to 6 s)
MIN_SECONDS = 4.0
FEWEST_ITERATIONS = 30  # if the job or the budget allows no more; shorter windows are not timed
MIN_ITERATIONS = 60  # after warm-up: averages stalls that recur every few dozen iterations
TIMED_STEPS = WARM_UP_MINIMUM + MIN_ITERATIONS
LENGTHENED = 1.25  # a window that is too short is extended by this multiple of what it lacks
FIRST_RUN = "first-run"  # journal key of OBSERVE's run of the bare job
# The first epoch is not like the others: a window is extended to the second one if that begins
# within this multiple of the usual length.
EPOCH_REACH = 2.0
BASELINE_TRIES = 2  # of a failing run of the unchanged job, which would end the whole run
REMEASURED = 2  # times a disturbed run is measured again before it is accepted
CONFIRM_SHARE = 0.6  # share of the budget that all runs of one confirmation may take together
FEWEST_PAIRS = LOOKS[0]  # of a confirmation, at its first look
# share of an iteration spent on page faults below which an allocator is worth as little as the
# running job shows
FAULTS_SHARE = 0.02
# however small the budget: a run may last this long to get MIN_SECONDS of training, evaluation
# included
PATIENCE_S = 16.0
# however small the budget: a briefly busy machine must not cut a run short
SHORTEST_LIMIT_S = 60.0


def understated(knob: Knob, observation: Observation) -> bool:
    """Whether live figures understate ``knob``: an allocator's do if page faults take long."""
    return (
        knob.live_errs_against
        and FAULT_S * observation.anatomy.minor_faults
        >= FAULTS_SHARE * observation.anatomy.iteration_s
    )


def needs_fresh_process(knob: Knob, value: Value, observation: Observation) -> bool:
    """Whether the running job cannot judge ``value``.

    It is set before the start, or live figures understate it.
    """
    return knob.scope_of(value) is Scope.PROCESS or (
        understated(knob, observation) and value in knob.live_values
    )


def values_for_fresh_runs(
    space: SearchSpace, name: str, observation: Observation
) -> tuple[Value, ...]:
    """The values of a knob, other than the job's own, that need a fresh process."""
    return tuple(
        value
        for value in observation.domains[name]
        if value != observation.defaults[name]
        and needs_fresh_process(space[name], value, observation)
    )


def as_many_samples(steps: int, own: int, size: int, epoch: int | None) -> int:
    """How many batches of ``size`` hold the samples of ``steps`` batches of ``own``.

    ``epoch``: samples in an epoch, if it ends with a smaller batch; None: all batches are full.
    """
    if not epoch:
        return math.ceil(steps * own / size)
    epochs, rest = divmod(steps, math.ceil(epoch / own))
    return epochs * math.ceil(epoch / size) + math.ceil(rest * own / size)


def _with_its_workers(record: Record) -> Record:
    """``record``, if none of its DataLoader's workers was killed from outside.

    Without that worker the job continues with its own settings.

    Raises:
        SessionFailed: one was killed.
    """
    killed = next(filter(KILLED.search, record.no_effect.values()), None)
    if killed is not None:
        raise SessionFailed("killed", killed)
    return record


class FreshRuns:
    """Makes fixed runs of the job; one instance per comparison, so that its runs are alike.

    ``place`` names the comparison. The window length it needs is kept in the journal; otherwise a
    resumed run would begin with short windows again. A new comparison begins with what the first
    run needed.
    """

    def __init__(self, context: RunContext, steps: int, place: str) -> None:
        self.context, self.steps, self.place = context, steps, place
        known = (context.journal.find("window", at) for at in (place, FIRST_RUN))
        self.min_seconds: float = next(filter(None, known), MIN_SECONDS)
        # side -> runs repeated though no other process was seen to disturb them
        self._repeated: Counter[str] = Counter()

    def run(
        self,
        executor: Executor,
        config: Config,
        seed: int,
        label: str,
        calm: Sequence[Window] | None,
    ) -> Record:
        """Record one run of ``config``.

        ``calm``: earlier windows of the same configuration on the same machine. None: the run is
        compared with no other one and kept even if other load disturbed it.

        Raises:
            SessionFailed: the job failed with this configuration.
            BaselineError: too few iterations to time anything.
        """
        request = self._request(executor, config, seed, label)
        (record,) = self._undisturbed(lambda: (self._tried(executor, request),), (label,), (calm,))
        if not executor.goes_on and (missing_s := self._missing_s(record)):
            spent_s = math.fsum(record.window.times_s) + record.window.away_s
            self.min_seconds = max(self.min_seconds, spent_s + missing_s)
            self.context.journal.append("window", self.place, self.min_seconds)
            request = replace(request, min_seconds=self.min_seconds)
            (record,) = self._undisturbed(
                lambda: (self._tried(executor, request),), (label,), (calm,)
            )
        self.require_enough(record, config)
        return record

    def interleaved(
        self,
        executors: Sequence[Executor],
        configs: Sequence[Config],
        seed: int,
        labels: Sequence[str],
        calm: Sequence[Sequence[Window]],
    ) -> Sequence[Record]:
        """Record two configurations, each with its executor, whose processes train in slices.

        The records are not checked, see :meth:`require_enough`.

        Raises:
            SessionFailed: one of them failed, perhaps because there was no room for both.
        """
        first, second = (
            self._request(executor, config, seed, label)
            for executor, config, label in zip(executors, configs, labels, strict=True)
        )
        one, other = executors
        return self._undisturbed(
            lambda: [_with_its_workers(r) for r in one.run_interleaved(first, second, other)],
            labels,
            calm,
        )

    def require_enough(self, record: Record, config: Config) -> None:
        """Check that ``record``, of ``config``, can be timed.

        Raises:
            BaselineError: it has too few iterations.
        """
        counted, times_s = counted_times(record.window), record.window.times_s
        # of later epochs, fewer will do: the first one was left out because enough of them are there
        if len(counted) >= FEWEST_ITERATIONS or later_epoch(record.window) is not None:
            return
        limit_s = longest_s(self.context)
        spent_s = math.fsum(times_s) + record.window.away_s
        needed = WARM_UP_MINIMUM + FEWEST_ITERATIONS
        remedy = (
            "increase the number of epochs or steps in job.yaml's command, or raise budget.minutes"
            " if steps are slow"
        )
        if record.ended_early and config:
            ran = "the job ended after"
        elif record.ended_early:
            ran = "the job is too short to be timed: it ended after"
        elif spent_s > 0.9 * limit_s:  # the budget's limit ended it
            ran = f"in the {limit_s:.0f} s that budget.minutes leaves a run, it ran"
            further = max(needed - len(times_s), FEWEST_ITERATIONS - len(counted))
            run_s = 1.1 * (spent_s + further * median(times_s or (0.0,)))
            remedy = (
                f"raise budget.minutes to {math.ceil(minutes_for(run_s))}: that many steps take"
                f" {duration_words(run_s)}, and a proof takes {2 * FEWEST_PAIRS} such runs"
            )
        else:
            ran = "the job's iteration times do not settle: it ran"
        raise BaselineError(
            f"{ran} {len(times_s)} optimizer steps, {len(counted)} of them after warm-up",
            where=" ".join(mask_command(self.context.spec.command)),
            expected=f"at least {needed} optimizer steps, {FEWEST_ITERATIONS} of them after warm-up",
            remedy=remedy,
        )

    def untimed(self, executor: Executor, config: Config, seed: int, label: str) -> Record:
        """Make a run for its losses: the same number of steps, whatever else the machine does.

        Raises:
            SessionFailed: the job failed with this configuration.
        """
        return self._tried(
            executor,
            FixedRun(
                config,
                seed,
                steps=self.steps_of(config, self.steps),
                max_seconds=longest_s(self.context),
                label=label,
            ),
        )

    def first_steps(
        self,
        executor: Executor,
        config: Config,
        seed: int,
        label: str,
        loss_scale: float | None = None,
    ) -> Record:
        """Make a run of a few steps for the gradient of the first one. It is not timed.

        Raises:
            SessionFailed: the job failed with this configuration.
        """
        return self._tried(
            executor, FixedRun(config, seed, steps=4, label=label, loss_scale=loss_scale)
        )

    def steps_of(self, config: Config, steps: int) -> int:
        """How many steps ``config`` needs beside ``steps`` of the unchanged job: with a larger
        batch as many samples, and enough to be timed.
        """
        observation, size = self.context.observation, config.get("batch_size")
        if observation is None:
            return steps
        own, loader = observation.defaults.get("batch_size"), observation.job.loader
        if not (isinstance(own, int) and isinstance(size, int) and size > own):
            return steps
        epoch = None
        if loader is not None and not loader.drop_last:
            epoch = (loader.rank_samples or (loader.samples,))[0]
        return max(as_many_samples(steps, own, size, epoch) + 1, min(steps, TIMED_STEPS))

    def _request(self, executor: Executor, config: Config, seed: int, label: str) -> FixedRun:
        return FixedRun(
            config,
            seed,
            steps=self.steps_of(config, self.steps),
            min_seconds=self.min_seconds,
            max_seconds=longest_s(self.context),
            label=label,
            more=self._further if executor.goes_on else None,
        )

    def _undisturbed(
        self,
        measure: Callable[[], Sequence[Record]],
        labels: Sequence[str],
        calm: Sequence[Sequence[Window] | None],
    ) -> Sequence[Record]:
        """Return what ``measure`` gives, one record per label.

        It is repeated if other load disturbed one of them.

        Args:
            calm: for each label, earlier windows of the same configuration; None: not repeated.
        """
        records, known = measure(), [list(windows) for windows in calm if windows is not None]
        for _ in range(REMEASURED if known else 0):
            found = [disturbed(r.window, c) for r, c in zip(records, known, strict=True)]
            label, why = next(
                (each for each in zip(labels, found, strict=True) if each[1]), ("", "")
            )
            # beyond the budget, a disturbed run is accepted
            if not why or self.context.out_of_time():
                break
            by_others = any(
                r.window.foreign_load - median([w.foreign_load for w in c] or [0.0])
                > SOME_FOREIGN_CORES
                for r, c in zip(records, known, strict=True)
            )
            if not by_others and not self._may_repeat(label):
                break
            # Ctrl-C lets one run of the job finish, not three of them
            self.context.stop.check()
            self.context.note_disturbed(label, why)
            for windows, record in zip(known, records, strict=True):
                windows.append(record.window)  # if the load is still there, it is the usual load
            records = measure()
        return records

    def _may_repeat(self, label: str) -> bool:
        """Whether the run ``label`` may be repeated though nothing else was seen on the machine.

        A side that is throttled, or waits for the CPU, more often than the other does so by itself:
        it would be judged without its slow runs.
        """
        side = label.split("-")[-2:][0]  # …-candidate-1003
        others = sum(n for other, n in list(self._repeated.items()) if other != side)
        if self._repeated[side] > others:
            return False
        self._repeated[side] += 1
        return True

    def _tried(self, executor: Executor, request: FixedRun) -> Record:
        """Make a run; repeated if it was killed from outside, or if the unchanged job failed.

        The unchanged job ran while it was observed, so the machine may be to blame.
        """
        for attempt in itertools.count(1):
            try:
                return _with_its_workers(executor.run_fixed(request))
            except SessionFailed as failure:
                self.context.stop.check_after(failure.kind)
                again = failure.kind == "killed" or (
                    failure.kind in ("crash", "oom", "ended") and not request.config
                )
                if not again or attempt == (KILLS if failure.kind == "killed" else BASELINE_TRIES):
                    raise
                self.context.progress.note(
                    f"this run failed ({failure.kind}: {failure.detail}); trying again"
                )
        raise AssertionError("the loop above returns or raises")

    def _further(self, record: Record) -> int:
        """Number of iterations that a too short window should have; 0: it is long enough."""
        missing_s = self._missing_s(record)
        if not missing_s:
            return 0
        steps = len(record.window.times_s) + math.ceil(
            missing_s / fmean(counted_times(record.window))
        )
        return min(steps, self._most_steps())

    def _missing_s(self, record: Record) -> float:
        """Seconds that a window lacks, if the job has more to give; 0.0: it is long enough."""
        window, counted = record.window, counted_times(record.window)
        if record.ended_early or not counted:
            return 0.0
        iteration_s, counted_s = fmean(counted), math.fsum(counted)
        missing_s = max(
            LENGTHENED * (MIN_ITERATIONS - len(counted)) * iteration_s,
            min(LENGTHENED * (MIN_SECONDS - counted_s), self._worth_s(window, counted_s)),
        )
        room_s = longest_s(self.context) - math.fsum(window.times_s) - window.away_s
        epoch_s = self._to_second_epoch_s(window, iteration_s)
        wanted_s = (max(missing_s, epoch_s), missing_s)
        return next((s for s in wanted_s if 0.0 < s <= room_s), 0.0)

    def _worth_s(self, window: Window, counted_s: float) -> float:
        """Seconds by which ``window`` may be extended to reach MIN_SECONDS.

        Where evaluation takes most of the time, each second of training costs a multiple.
        """
        spent_s = counted_s + window.away_s
        worth_s = (max(share_s(self.context), PATIENCE_S) - spent_s) * counted_s / spent_s
        return worth_s if worth_s > MIN_SECONDS / 8 else 0.0

    def _to_second_epoch_s(self, window: Window, iteration_s: float) -> float:
        """Seconds that ``window`` lacks to show enough of the second epoch.

        0.0: it does, or that epoch is too far away.
        """
        seen = bool(window.turnovers_s)
        epoch = next(iter(window.turnovers_at), None) if seen else window.epoch_iterations
        usual_s = max(self.steps * iteration_s, MIN_SECONDS)
        if (
            later_epoch(window) is not None
            or epoch is None
            or epoch * iteration_s > EPOCH_REACH * usual_s
            or epoch + MIN_ITERATIONS > self._most_steps()
        ):
            return 0.0
        between_s = self._between_epochs_s()
        steps = _steps_to_second_epoch(epoch, iteration_s)
        if between_s is None or steps * iteration_s + between_s > share_s(self.context):
            return 0.0
        return max(steps - len(window.times_s), 0) * iteration_s

    def _between_epochs_s(self) -> float | None:
        """Seconds that the end of an epoch (evaluation, saving) took in the job's first run.

        None: that run reached none. 0.0: there was no first run.
        """
        first = self.context.stored(FIRST_RUN)
        if first is None:
            return 0.0
        turnovers = len(first.window.turnovers_s)
        return first.window.away_s / turnovers if turnovers else None

    def _most_steps(self) -> int:
        return max(self.steps, SessionConfig.max_steps)


def share_s(context: RunContext) -> float:
    """Seconds of the budget that each run of a confirmation may take."""
    return CONFIRM_SHARE * context.spec.budget.minutes * 60 / (2 * FEWEST_PAIRS)


def longest_s(context: RunContext) -> float:
    """Limit of a run's window that keeps a slow job within the budget.

    The window is then shorter than convergence.steps, and the result says so.
    """
    return max(SHORTEST_LIMIT_S, share_s(context))


def minutes_for(run_s: float) -> float:
    """The budget of which ``run_s`` is each run's share."""
    return run_s * 2 * FEWEST_PAIRS / (CONFIRM_SHARE * 60)


def later_run_s(context: RunContext, first: Record) -> float:
    """Seconds that further runs of the bare job take: as long as ``first``; 0.0: unknown.

    An extension of ``first`` is left out if the second epoch it reached for turned out to take too
    long.
    """
    window, steps = first.window, context.spec.convergence.steps
    epoch = next(iter(window.turnovers_at), 0)
    if not wall_s(first) or epoch < steps:
        return wall_s(first)
    iteration_s, between_s = fmean(counted_times(window)), window.away_s / len(window.turnovers_at)
    if _steps_to_second_epoch(epoch, iteration_s) * iteration_s + between_s <= share_s(context):
        return wall_s(first)
    usual = max(steps, math.ceil(MIN_SECONDS / iteration_s))
    return wall_s(first) - window.away_s - math.fsum(window.times_s[usual:])


def _steps_to_second_epoch(epoch: int, iteration_s: float) -> int:
    """Iterations that a run needs to show enough of the second epoch."""
    return epoch + max(MIN_ITERATIONS, math.ceil(MIN_SECONDS / iteration_s)) + 2 * WARM_UP_MINIMUM


def first_look_s(context: RunContext, observation: Observation) -> float:
    """Estimated seconds that the proof of one finalist takes at least: its first five pairs."""
    return rounds(context, FEWEST_PAIRS) * pair_s(context, observation)


def pair_s(
    context: RunContext, observation: Observation, gain: float = 0.0, reference_gain: float = 0.0
) -> float:
    """Estimated seconds of a pair of fresh processes.

    They take as long as two runs of the bare job, less what both save; the largest batch size that
    is searched may need more samples to be timed.

    Args:
        gain: the candidate's log speed-up.
        reference_gain: that of what it is compared with; 0.0: the job as it is.
    """
    if context.spec.objective == "energy":
        gain = reference_gain = 0.0  # of joules
    steps, iteration_s = context.spec.convergence.steps, observation.anatomy.iteration_s
    sizes, own = observation.domains.get("batch_size", ()), observation.defaults.get("batch_size")
    grown = max((n / own for n in sizes if isinstance(n, int) and isinstance(own, int)), default=1)
    own_s, reference_s, candidate_s = (
        min(max(count * iteration_s, MIN_SECONDS), longest_s(context))
        for count in (
            steps,
            steps * math.exp(-reference_gain),
            max(steps, TIMED_STEPS * grown) * math.exp(-gain),
        )
    )
    run_s = max(observation.run_s, observation.startup_s + own_s)
    return 2 * (run_s - own_s) + reference_s + candidate_s


def rounds(context: RunContext, pairs: int) -> int:
    """How many of ``pairs`` pairs run one after the other: on a cluster each machine makes some."""
    return math.ceil(pairs / max(len(context.executor.lanes() or ()), 1))


def wall_s(record: Record) -> float:
    """Seconds the run took, start and end included; 0.0: unknown."""
    return float(record.notes.get(WALL_S, 0.0))


def counted_times(window: Window) -> tuple[float, ...]:
    """Times of the iterations that count, in seconds."""
    return window.times_s[first_counted(window) :] if window.times_s else ()
