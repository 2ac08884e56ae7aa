"""SEARCH: live sessions first, then values that need a new process.

    search: model        every block informs every knob (model_search.py): the default
    search: tpe, random  one trial a knob, the winners together, then Optuna's sampler, until
        plateau, budget or an exhausted space
    then, for all        values that need a new process, one by one on the best of the above, in fresh processes

Live figures steer the search; they are never reported as the result. On a cluster every slot has
its own live session, and as many trials run at once as there are slots (measuring/lanes.py); each
is compared with baseline blocks of its own session.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from autotune.errors import BaselineError
from autotune.executors.base import SessionFailed
from autotune.history.use import Expected
from autotune.job.configs import key_of, live_domains, normalise, without
from autotune.results import Interval, KnobGain, Observation, Trial, TrialState
from autotune.search.proposer import Proposer
from autotune.search.seeds import seeds
from autotune.search.stopping import best_of
from autotune.stages.budget import proof_begins_s
from autotune.stages.context import RunContext
from autotune.stages.decisions.worth_it import judged
from autotune.stages.measuring.fresh import (
    FEWEST_PAIRS,
    pair_s,
    rounds,
    understated,
    values_for_fresh_runs,
)
from autotune.stages.measuring.kept_session import BlockFailed
from autotune.stages.measuring.lanes import MOST_LOST, spread
from autotune.stages.measuring.live_comparison import CLEAR_LOSS, LiveComparison
from autotune.stages.measuring.pairs import PROCESS_PAIRS, Pairs
from autotune.stages.observe import explain_failure
from autotune.stages.searching.model_search import Found, search_live
from autotune.stages.searching.proposals import PROMISING, Proposal, Proposals, learn, store
from autotune.tracking.records import record_trial
from autotune.verdict.speedup import MINIMUM_GAIN, LogRatio, choose
from autotune.verdict.timing import start_up_excess, warm_up_end
from autotune.words import factor_words, plural
from autotune_spaces.base import Config, SearchSpace, Value
from autotune_spaces.codec import decode, encode
from autotune_trials.protocol.messages import Record

FINALISTS = 2  # taken from a sampler's trials


@dataclass(frozen=True)
class Finalist:
    """A configuration to be proven in fresh processes."""

    config: dict[str, Value]
    # known gains of its knobs and of dropped ones; the other knobs are still to be dropped in turn
    gains: tuple[KnobGain, ...] = ()


@dataclass(frozen=True)
class Searched:
    """The result of the search."""

    trials: tuple[Trial, ...]  # in the order they were measured
    finalists: tuple[Finalist, ...]  # best first
    gains: tuple[KnobGain, ...] = ()  # known gains of single knobs


def search(
    context: RunContext, observation: Observation, expected: Sequence[Expected] = ()
) -> Searched:
    """Search; trials that an earlier process of this run measured come from the journal.

    Args:
        expected: what the history says of similar jobs; only the model uses it.

    Raises:
        BaselineError: the unchanged job cannot be measured.
        Interrupted: the user asked to stop; call again to resume.
    """
    context.progress.stage("search", plural(len(observation.domains), "knob"))
    trials = [decode(Trial, e.data) for e in context.journal.all("trial")]
    stored = context.journal.find("search-done")
    if stored is None and observation.domains:
        if context.spec.search == "model":
            found, gains = _with_model(context, observation, trials, expected)
        else:
            found, gains = _with_sampler(context, observation, trials)
        stored = {"finalists": encode(found), "gains": encode(gains)}
        context.journal.append("search-done", "", stored)
    stored = stored or {}
    return Searched(
        tuple(trials),
        tuple(decode(Finalist, f) for f in stored.get("finalists", ())),
        tuple(decode(KnobGain, g) for g in stored.get("gains", ())),
    )


def _with_model(
    context: RunContext, observation: Observation, trials: list[Trial], expected: Sequence[Expected]
) -> tuple[tuple[Finalist, ...], tuple[KnobGain, ...]]:
    """Take the model's answer and add what pays off in fresh runs."""
    stored = context.journal.find("found")
    domains = live_domains(observation.domains, observation.defaults, context.spec.search_space)
    study = Proposer(
        context.run_dir / "optuna.log",
        context.spec.search_space,
        domains,
        observation.defaults,
        context.seed,
    )
    if stored is None:
        measured, found = search_live(context, observation, expected)
        known = {key_of(t.config) for t in trials}
        for trial in measured:
            if key_of(trial.config) not in known:
                trials.append(trial)
                context.journal.append("trial", key_of(trial.config), encode(trial))
                record_trial(context.tracker, trial, observation.defaults)
        context.journal.append("found", "", encode(found))
    else:
        found = decode(Found, stored)
    # for Optuna's tools; the model does not use it
    study.restore([t for t in trials if t.origin != "process"])
    config, log_gain, fresh = _search_process(context, observation, trials, found)
    # gains from fresh runs override live ones, unless the fresh runs dropped a value other than the
    # one that is kept
    known_of = {g.knob: g for g in found.gains}
    known_of |= {g.knob: g for g in fresh if g.kept == (g.knob in config)}
    gains = tuple(known_of.values())
    if log_gain <= math.log1p(MINIMUM_GAIN):
        return (), gains
    first = Finalist(config, tuple(g for g in gains if g.kept == (g.knob in config)))
    return (first, *_runner_up(context.spec.search_space, observation, first, log_gain)), gains


def _runner_up(
    space: SearchSpace, observation: Observation, first: Finalist, log_gain: float
) -> tuple[Finalist, ...]:
    """The finalist without its riskiest knob.

    It is tried if the first one fails in a fresh process or is not proven.
    """
    own = {
        g.knob: math.log(g.speedup.estimate)
        for g in first.gains
        if g.kept and g.speedup is not None
    }
    risks = {
        name: (space[name].start_up_cost, space[name].numerics.severity, -own.get(name, 0.0))
        for name in first.config
    }
    riskiest = max(risks, key=lambda name: risks[name])
    config = normalise(without(first.config, riskiest), observation.defaults, space)
    if not config or log_gain - own.get(riskiest, 0.0) <= math.log1p(MINIMUM_GAIN):
        return ()
    return (Finalist(config, tuple(g for g in first.gains if not g.kept or g.knob in config)),)


def _with_sampler(
    context: RunContext, observation: Observation, trials: list[Trial]
) -> tuple[tuple[Finalist, ...], tuple[KnobGain, ...]]:
    _search_live(context, observation, trials)
    best = best_of(trials)
    found = Found(dict(best.config) if best else {}, -(best.log_ratio or 0.0) if best else 0.0)
    with_process, _, fresh = _search_process(context, observation, trials, found)
    candidates = [t for t in trials if t.origin != "process" or dict(t.config) == with_process]
    chosen = (
        Finalist(config, tuple(g for g in fresh if g.kept == (g.knob in config)))
        for config in finalists(candidates)
    )
    return tuple(chosen), fresh


def finalists(trials: Sequence[Trial]) -> list[dict[str, Value]]:
    """The fastest configurations of the search that gain more than the minimum, best first.

    Among those within the minimum gain of the best, the smallest change comes first.
    """
    ahead = [
        (t, t.speedup)
        for t in trials
        if t.state == "complete" and t.speedup is not None and t.speedup > 1 + MINIMUM_GAIN
    ]
    chosen: list[dict[str, Value]] = []
    while ahead and len(chosen) < FINALISTS:
        trial, _ = ahead.pop(
            choose([speedup for _, speedup in ahead], [len(t.config) for t, _ in ahead])
        )
        chosen.append(dict(trial.config))
    return chosen


def _search_live(context: RunContext, observation: Observation, trials: list[Trial]) -> None:
    space = context.spec.search_space
    domains = live_domains(observation.domains, observation.defaults, space)
    if not domains:
        return
    proposer = Proposer(
        context.run_dir / "optuna.log",
        space,
        domains,
        observation.defaults,
        context.seed,
        context.spec.search,
    )
    proposer.restore(trials)
    for trial in trials:
        learn(proposer, trial, context, warn=False)
    for config in seeds(
        observation.bottleneck, domains, observation.defaults, observation.anatomy.minor_faults
    ):
        proposer.enqueue(config, "seed")
    proposals, own = Proposals(context, proposer, observation, trials), observation.anatomy

    def serve(lane: RunContext, pieces: Iterator[Proposal]) -> None:
        with LiveComparison(
            lane, noise=observation.noise, room=own.iterations, own_memory_gib=own.peak_memory_gib
        ) as live:
            for proposal in pieces:
                proposals.measured(_measure(lane, live, proposal, proposals))

    def give_up(proposal: Proposal, failure: SessionFailed) -> None:
        reason = f"its machine was lost {MOST_LOST} times; the last time: {failure.detail}"
        proposals.measured(
            Trial(
                proposal.number,
                proposal.config,
                TrialState.FAILED,
                reason=reason,
                origin=proposal.origin,
            )
        )

    spread(context, proposals.take, serve, give_up)


def _measure(
    context: RunContext, live: LiveComparison, proposal: Proposal, proposals: Proposals
) -> Trial:
    """Measure a proposal in the live session.

    Raises:
        SessionFailed: "lost"; nothing is known of the configuration.
    """
    config, started = proposal.config, time.monotonic()
    trial = Trial(
        proposal.number,
        config,
        TrialState.COMPLETE,
        origin=proposal.origin,
        node=context.executor.node,
    )
    context.progress.measuring(f"trial {proposal.number}", config)
    try:
        comparison = live.compare(config, {}, enough=lambda ratio: _enough(ratio, proposals.best()))
    except BlockFailed as failure:
        failed = replace(trial, state=TrialState(failure.kind), reason=failure.reason)
        return replace(failed, wall_s=time.monotonic() - started)
    except SessionFailed as failure:
        if failure.kind == "lost":
            raise
        raise explain_failure(context, failure) from failure
    useless = {k: why for k, why in comparison.no_effect.items() if k in config}
    state, reason = TrialState.COMPLETE, ""
    if useless:
        state, reason = TrialState.FAILED, _no_effect_words(useless)
    elif comparison.pruned:
        factor = factor_words(math.exp(comparison.ratio.estimate))
        state, reason = TrialState.PRUNED, f"{factor} the baseline's time after its first block"
    return replace(
        trial,
        state=state,
        reason=reason,
        log_ratio=comparison.ratio.estimate,
        standard_error=comparison.ratio.standard_error,
        pairs=comparison.ratio.pairs,
        no_effect=useless,
        anatomy=comparison.anatomy,
        wall_s=time.monotonic() - started,
        settle_s=comparison.settle_s,
        second_log_ratio=comparison.second,
    )


def _enough(ratio: LogRatio, best: Trial | None) -> bool:
    """Whether no further pairs are needed.

    A possible new best gets two more, because its figure is the one that matters.
    """
    if ratio.pairs > 2 or ratio.estimate > -PROMISING:
        return True
    return best is not None and ratio.estimate > (best.log_ratio or 0.0) + ratio.sigma


def _search_process(
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
    not_tried: dict[str, list[str]] = {}
    values = _for_fresh_runs(context, observation, found)
    for place, tried in enumerate(values):
        config = normalise({**best, tried.knob: tried.value}, observation.defaults, space)
        if config == best:
            continue
        trial = known.get(key_of(config))
        if trial is None:
            if why := _no_room(context, observation, trials, log_gain):
                not_tried.setdefault(why, []).append(f"{tried.knob}={tried.value}")
                continue
            to_come = len(values) - place - 1
            trial = _measure_fresh(
                context, observation, tried, config, best, log_gain, trials, to_come
            )
            store(context, observation.defaults, trials, trial)
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
    for why, names in not_tried.items():
        context.progress.note(f"not tried in fresh processes ({why}): {', '.join(names)}")
    return best, log_gain, tuple(gains.values())


def _beyond(first: KnobGain, second: KnobGain) -> KnobGain:
    """``second``, measured against ``first``'s value of the same knob, as a gain over neither."""
    if first.speedup is None or second.speedup is None:
        return second
    a, b = first.speedup, second.speedup
    gain = math.log(a.estimate * b.estimate)
    half = math.hypot(math.log(a.high / a.estimate), math.log(b.high / b.estimate))
    return replace(second, speedup=Interval(*(math.exp(gain + k * half) for k in (0, -1, 1))))


@dataclass(frozen=True)
class _FreshValue:
    """A value to be tried in fresh processes."""

    knob: str
    value: Value
    doubted: bool = False  # the running job showed little gain
    start_up_s: float = 0.0  # its start-up cost there, with nothing compiled yet


def _for_fresh_runs(
    context: RunContext, observation: Observation, found: Found
) -> list[_FreshValue]:
    """The values to try, most promising first.

    The first value of every knob comes before any second one; among these, knobs that live figures
    understate come first. Values that the running job left in doubt come last.
    """
    space = context.spec.search_space
    fresh = {name: values_for_fresh_runs(space, name, observation) for name in observation.domains}
    ranked = sorted(
        (place, not understated(space[name], observation), order, name)
        for order, (name, values) in enumerate(fresh.items())
        for place in range(len(values))
    )
    doubted = [g for g in found.gains if not g.kept and _may_gain(g)]
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
        return "budget.trials is used up"
    needed_s = rounds(context, times * PROCESS_PAIRS) * pair_s(context, observation, log_gain)
    proof_s = proof_begins_s(context, observation, log_gain, FEWEST_PAIRS)
    return "no time left" if context.journal.elapsed_s + needed_s > proof_s else ""


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
        if not _useless(pairs) and pairs.figures.log_speedups()[0] > -hopeless:
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
    if useless := _useless(pairs):
        for name, why in useless.items():
            context.progress.warning(f"{name}={trial.config[name]} had no effect: {why}")
        return replace(trial, reason=_no_effect_words(useless), no_effect=useless)
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


def _no_effect_words(useless: Mapping[str, str]) -> str:
    return "; ".join(f"{name} had no effect: {why}" for name, why in useless.items())


def _useless(pairs: Pairs) -> dict[str, str]:
    """Knobs that differ between candidate and reference and had no effect in the candidate."""
    before, after = pairs.configs["reference"], pairs.configs["candidate"]
    found = {
        name: why for record in pairs.candidate.values() for name, why in record.no_effect.items()
    }
    return {
        name: why
        for name, why in found.items()
        if name in after and (name not in before or before[name] != after[name])
    }


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
