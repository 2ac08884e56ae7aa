"""Values that the running job cannot judge: each on the best so far, in pairs of fresh processes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from autotune.errors import BaselineError
from autotune.executors.base import SessionFailed
from autotune.job.configs import key_of, normalize
from autotune.results import KnobGain, Observation, Trial, TrialState, best_of
from autotune.search.seeds import likely
from autotune.stages.budget import NO_TIME, NO_TRIALS, proof_begins_s
from autotune.stages.context import RunContext
from autotune.stages.decisions.worth_it import judged
from autotune.stages.measuring.fresh import (
    FEWEST_PAIRS,
    pair_s,
    rounds,
    understated,
    values_for_fresh_runs,
)
from autotune.stages.measuring.pairs import PROCESS_PAIRS, Pairs
from autotune.stages.searching.model_search import Found
from autotune.tracking.records import record_trial
from autotune.verdict.iterations import warm_up_end
from autotune.verdict.speedup import MINIMUM_GAIN, LogRatio, around
from autotune.verdict.timing import start_up_excess
from autotune.words import factor_words, no_effect_words
from autotune_spaces.base import Config, Value
from autotune_spaces.codec import encode
from autotune_trials.protocol.messages import Record

UNTRIED = "untried"  # journal key
CLEAR_LOSS = 0.10  # log ratio of a first pair so slow that no others are made


@dataclass(frozen=True)
class _FreshValue:
    """A value to be tried in fresh processes."""

    knob: str
    value: Value
    doubted: bool = False  # the running job showed little gain
    start_up_s: float = 0.0  # its start-up cost there, with nothing compiled yet


def search_fresh(
    context: RunContext, observation: Observation, trials: list[Trial], found: Found
) -> tuple[dict[str, Value], float, tuple[KnobGain, ...]]:
    """Coordinate search in pairs of fresh runs, for values that the running job cannot judge.

    Each value is tried on top of the best configuration so far.

    Returns:
        the best configuration, its log speed-up over the unchanged job, and the gains of the knobs
        tried.
    """
    space, best, log_gain = context.spec.search_space, dict(found.config), found.log_gain
    known = {key_of(t.config): t for t in trials if t.origin == "process"}
    gains: dict[str, KnobGain] = {}
    not_tried = {why: [*names] for why, names in found.untried.items()}
    values = _for_fresh_runs(context, observation, found)
    for place, tried in enumerate(values):
        config = normalize({**best, tried.knob: tried.value}, observation.defaults, space)
        if config == best:
            continue
        trial = known.get(key_of(config))
        if trial is None:
            if why := _no_room(context, observation, trials, log_gain):
                names = not_tried.setdefault(why, [])
                if tried.knob not in names:  # else no value of it was tried
                    names.append(f"{tried.knob}={tried.value} in a fresh process")
                continue
            to_come = len(values) - place - 1
            trial = _measure_fresh(
                context, observation, tried, config, best, log_gain, trials, to_come
            )
            _store(context, observation.defaults, trials, trial)
            context.stop.check()
        if trial.state != "complete" or trial.log_ratio is None:
            continue
        it = _judged(context, observation, tried, trial, log_gain)
        if it.kept:
            before = gains.get(tried.knob) or next(
                (g for g in found.gains if g.knob == tried.knob), None
            )
            replaces = before is not None and before.value == best.get(tried.knob)
            gains[tried.knob] = _beyond(before, it) if before and replaces else it
            best, log_gain = dict(config), -trial.log_ratio
        elif tried.knob not in gains:
            gains[tried.knob] = it
    untried = "; ".join(f"{', '.join(names)} ({why})" for why, names in not_tried.items())
    if untried:
        context.progress.note(f"not tried: {untried}")
    if context.journal.find(UNTRIED) != untried:
        context.journal.append(UNTRIED, "", untried)
    return best, log_gain, tuple(gains.values())


def _store(context: RunContext, defaults: Config, trials: list[Trial], trial: Trial) -> None:
    """Put a measured trial into the journal, the tracker and the progress display."""
    trials.append(trial)
    context.journal.append("trial", key_of(trial.config), encode(trial))
    record_trial(context.tracker, trial, defaults)
    context.progress.trial(trial, best_of(trials))


def _for_fresh_runs(
    context: RunContext, observation: Observation, found: Found
) -> list[_FreshValue]:
    """The values to try, most promising first.

    The first value of every knob comes before any second one; among these, knobs that live figures
    understate come first. Values that the running job left in doubt come last.
    """
    space = context.spec.search_space
    fresh = {
        name: sorted(values_for_fresh_runs(space, name, observation), key=partial(likely, name))
        for name in observation.domains
    }
    ranked = sorted(
        (place, not understated(space[name], observation), order, name)
        for order, (name, values) in enumerate(fresh.items())
        for place in range(len(values))
    )
    doubted = [g for g in found.gains if not g.kept and _may_gain(g)]
    doubted.sort(key=lambda gain: -gain.speedup.estimate if gain.speedup else 0.0)
    return [_FreshValue(name, fresh[name][place]) for place, _, _, name in ranked] + [
        _FreshValue(g.knob, g.value, True, g.start_up_s)
        for g in doubted
        if g.value not in fresh[g.knob]
    ]


def _may_gain(gain: KnobGain) -> bool:
    """Whether its interval includes a worthwhile gain."""
    return gain.speedup is not None and gain.speedup.high > 1 + MINIMUM_GAIN


def _judged(
    context: RunContext, observation: Observation, tried: _FreshValue, trial: Trial, log_gain: float
) -> KnobGain:
    """Judge the value from ``trial``; ``log_gain``: log speed-up of what it was added to."""
    gain = LogRatio(-(trial.log_ratio or 0.0) - log_gain, trial.standard_error or 0.0, trial.pairs)
    without_s = observation.anatomy.iteration_s * math.exp(-log_gain)
    once_s = max(trial.settle_s, tried.start_up_s)
    return judged(context.spec, tried.knob, tried.value, gain, once_s, without_s, tried.doubted)


def _beyond(first: KnobGain, second: KnobGain) -> KnobGain:
    """``second``, measured against ``first``'s value of the same knob, as a gain over neither."""
    if first.speedup is None or second.speedup is None:
        return second
    a, b = first.speedup, second.speedup
    gain = math.log(a.estimate * b.estimate)
    error = math.hypot(math.log(a.high / a.estimate), math.log(b.high / b.estimate)) / 2
    return replace(second, speedup=around(gain, error))


def _no_room(
    context: RunContext,
    observation: Observation,
    trials: Sequence[Trial],
    log_gain: float,
    times: int = 1,
) -> str:
    """Why there is no room for ``times`` the pairs of a trial in fresh processes; "": there is.

    Time for the proof's first look, which is always taken, is kept free.
    """
    if context.spec.budget.tried(len(trials)):
        return NO_TRIALS
    a_pair_s = pair_s(context, observation, log_gain, log_gain)  # both sides are tuned
    needed_s = rounds(context, times * PROCESS_PAIRS) * a_pair_s
    proof_s = proof_begins_s(context, observation, log_gain, FEWEST_PAIRS)
    return NO_TIME if context.journal.elapsed_s + needed_s > proof_s else ""


def _measure_fresh(
    context: RunContext,
    observation: Observation,
    tried: _FreshValue,
    config: Config,
    reference: Config,
    log_gain: float,
    trials: Sequence[Trial],
    to_come: int,
) -> Trial:
    """Measure ``config`` against ``reference`` in interleaved fresh processes.

    The trial's ratio is against the baseline. A value that would be dropped but may still gain gets
    as many pairs again, if there is time for them and for the first pairs of the values to come.

    Args:
        tried: the value by which the two differ.
        log_gain: of the reference over the baseline.
        trials: made so far.
        to_come: number of values after this one.
    """
    started, number, noise = time.monotonic(), len(trials), observation.noise
    context.progress.measuring(f"trial {number}", config)
    pairs = Pairs(context, config, reference, label=f"trial{number}")
    trial = Trial(
        number, dict(config), TrialState.FAILED, origin="process", reference=dict(reference)
    )
    try:
        pairs.ensure(1)
        hopeless = max(CLEAR_LOSS, 4 * noise, 3 * _scatter(trials))
        if not pairs.useless and pairs.figures.log_speedups()[0] > -hopeless:
            pairs.ensure(PROCESS_PAIRS)
        second = _second_of(trials, reference)
        measured = _of_pairs(context, pairs, trial, -log_gain, noise, second)
        if measured.state == "complete":
            it = _judged(context, observation, tried, measured, log_gain)
            late = _no_room(context, observation, trials, log_gain, 1 + to_come)
            if not it.kept and _may_gain(it) and not late:
                pairs.ensure(2 * PROCESS_PAIRS)
                measured = _of_pairs(context, pairs, trial, -log_gain, noise, second)
        trial = measured
        if why := pairs.beyond_limits(observation):
            trial = replace(trial, state=TrialState.INFEASIBLE, reason=why)
    except SessionFailed as failure:
        no_room = failure.kind in ("oom", "killed")
        state = TrialState.INFEASIBLE if no_room else TrialState.FAILED
        trial = replace(trial, state=state, reason=str(failure))
    except BaselineError as error:
        trial = replace(trial, reason=error.found)
    return replace(trial, wall_s=time.monotonic() - started)


def _second_of(trials: Sequence[Trial], config: Config) -> float | None:
    """Log ratio over the baseline by the second objective; None: unknown."""
    if not config:
        return 0.0
    same = (t for t in trials if key_of(t.config) == key_of(config))
    return next((t.second_log_ratio for t in same), None)


def _scatter(trials: Sequence[Trial]) -> float:
    """Standard deviation of one pair's log ratio in the fresh runs so far; 0.0: there were none."""
    variances = [
        t.pairs * (t.standard_error or 0.0) ** 2
        for t in trials
        if t.origin == "process" and t.state == "complete"
    ]
    return math.sqrt(fmean(variances)) if variances else 0.0


def _of_pairs(
    context: RunContext,
    pairs: Pairs,
    trial: Trial,
    reference_ratio: float,
    noise: float,
    reference_second: float | None,
) -> Trial:
    """Fill in ``trial`` from its pairs.

    ``reference_ratio``, ``reference_second``: log ratios of their reference over the baseline, by
    the job's objectives.
    """
    if useless := pairs.useless:
        for name, why in useless.items():
            context.progress.warning(f"{name}={trial.config[name]} had no effect: {why}")
        return replace(trial, reason=no_effect_words(useless), no_effect=useless)
    gain, second_gain = pairs.figures.gain(noise), pairs.figures.second_gain()
    lost = gain.pairs < PROCESS_PAIRS
    second = None
    if second_gain is not None and reference_second is not None:
        second = reference_second - second_gain.estimate
    return replace(
        trial,
        state=TrialState.PRUNED if lost else TrialState.COMPLETE,
        log_ratio=reference_ratio - gain.estimate,
        standard_error=gain.standard_error,
        pairs=gain.pairs,
        reason=f"{factor_words(math.exp(-gain.estimate))} the time after the first pair of runs"
        if lost
        else "",
        anatomy=pairs.figures.anatomies()[1],
        settle_s=_start_up_s(pairs),
        node=pairs.nodes,
        second_log_ratio=second,
    )


def _start_up_s(pairs: Pairs) -> float:
    """Extra start-up seconds of the candidate over the reference, in the median pair.

    Kernels are searched in the first iterations.
    """

    def excess_s(record: Record) -> float:
        return start_up_excess(record.window, warm_up_end(record.window.times_s))

    seeds = pairs.candidate.keys() & pairs.reference.keys()
    return max(
        median(excess_s(pairs.candidate[s]) - excess_s(pairs.reference[s]) for s in seeds), 0.0
    )
