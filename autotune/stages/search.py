"""SEARCH: live sessions first, then values that need a new process.

    live     every block informs every knob (model_search.py)
    fresh    values that need a new process, one by one on the best of the above, in fresh processes

Live figures steer the search; they are never reported as the result. On a cluster every slot has
its own live session, and as many series run at once as there are slots (measuring/lanes.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.history.use import Expected
from autotune.job.configs import key_of, live_domains, normalize, without
from autotune.results import KnobGain, Observation, Trial
from autotune.search.proposer import Proposer
from autotune.stages.budget import explain_s
from autotune.stages.context import OVER, RunContext
from autotune.stages.measuring.fresh import first_look_s
from autotune.stages.searching.fresh_search import search_fresh
from autotune.stages.searching.model_search import Found, search_live
from autotune.tracking.records import record_trial
from autotune.verdict.speedup import MINIMUM_GAIN
from autotune.words import plural
from autotune_spaces.base import SearchSpace, Value
from autotune_spaces.codec import decode, encode


@dataclass(frozen=True)
class Finalist:
    """A configuration to be proven in fresh processes."""

    config: dict[str, Value]
    # of its knobs and of dropped ones
    gains: tuple[KnobGain, ...] = ()

    def reduced_to(self, config: dict[str, Value]) -> Finalist:
        """A milder finalist: ``config`` has some of its knobs."""
        return Finalist(config, tuple(g for g in self.gains if not g.kept or g.knob in config))


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
        expected: what the history says of similar jobs; samplers do not use it.

    Raises:
        BaselineError: the unchanged job cannot be measured.
        Interrupted: the user asked to stop; call again to resume.
    """
    context.progress.stage("search", plural(len(observation.domains), "knob"))
    trials = [decode(Trial, e.data) for e in context.journal.all("trial")]
    for trial in trials:  # the run may have been killed before the tracker had the last of them
        record_trial(context.tracker, trial, observation.defaults)
    stored = context.journal.find("search-done")
    if stored is None and observation.domains:
        found, gains = _search(context, observation, trials, expected)
        stored = {"finalists": encode(found), "gains": encode(gains)}
        context.journal.append("search-done", "", stored)
    stored = stored or {}
    return Searched(
        tuple(trials),
        tuple(decode(Finalist, f) for f in stored.get("finalists", ())),
        tuple(decode(KnobGain, g) for g in stored.get("gains", ())),
    )


def _search(
    context: RunContext, observation: Observation, trials: list[Trial], expected: Sequence[Expected]
) -> tuple[tuple[Finalist, ...], tuple[KnobGain, ...]]:
    """Take the answer of the live search and add what pays off in fresh runs."""
    stored = context.journal.find("found")
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
    _show_in_optuna(context, observation, trials)
    config, log_gain, fresh = search_fresh(context, observation, trials, found)
    # gains from fresh runs override live ones, unless the fresh runs dropped a value other than the
    # one that is kept
    known_of = {g.knob: g for g in found.gains}
    known_of |= {g.knob: g for g in fresh if g.kept == (g.knob in config)}
    gains = tuple(known_of.values())
    if log_gain <= math.log1p(MINIMUM_GAIN):
        tried = {
            name
            for t in trials
            if t.origin == "process"
            for name, value in t.config.items()
            if found.config.get(name) != value
        }
        return _in_doubt(context, observation, [g for g in gains if g.knob not in tried]), gains
    first = Finalist(config, tuple(g for g in gains if g.kept == (g.knob in config)))
    return (first, *_runner_up(context.spec.search_space, observation, first, log_gain)), gains


def _show_in_optuna(context: RunContext, observation: Observation, trials: Sequence[Trial]) -> None:
    """Write the study that Optuna's tools open."""
    space = context.spec.search_space
    domains = live_domains(observation.domains, observation.defaults, space)
    path = context.run_dir / "optuna.log"
    study = Proposer(path, space, domains, observation.defaults, context.seed)
    study.restore([t for t in trials if t.origin != "process"])


def _in_doubt(
    context: RunContext, observation: Observation, gains: Sequence[KnobGain]
) -> tuple[Finalist, ...]:
    """What the running job left in doubt, for want of an answer: it is proven as it is, since the
    time kept for a proof would be left unused. There was none for it in fresh processes before.

    ``gains``: in the running job alone.
    """
    doubted = {
        g.knob: replace(g, kept=True, reason="")
        for g in gains
        if g.speedup is not None
        and g.speedup.estimate > 1 + MINIMUM_GAIN
        and (g.break_even_steps or 0) <= context.spec.planned_steps
    }
    values = {name: g.value for name, g in doubted.items()}
    config = normalize(values, observation.defaults, context.spec.search_space)
    ahead_s = first_look_s(context, observation) + explain_s(context, observation)
    # a doubt is worth no more than the time that the user expects
    if not config or context.out_of_time(ahead_s, OVER * context.announced_s):
        return ()
    return (Finalist(config, tuple(g for name, g in doubted.items() if name in config)),)


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
    config = normalize(without(first.config, riskiest), observation.defaults, space)
    if not config or log_gain - own.get(riskiest, 0.0) <= math.log1p(MINIMUM_GAIN):
        return ()
    return (first.reduced_to(config),)
