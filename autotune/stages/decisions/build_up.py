"""How the gain builds up, knob by knob: a part of EXPLAIN.

    baseline │ + knob with the biggest own gain │ + next │ … │ + last = the confirmed figure
             └────── one live session, each step in blocks beside the baseline's ────────┘   fresh processes

The steps in between are live figures, for orientation; the last one is the confirmed speed-up with
its interval. What must be set before a process starts cannot be switched live: such knobs come
last, and the step before each is the confirmed figure without the gain that was measured for the
knob (in fresh processes, when it was dropped from the winner).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from autotune.errors import BaselineError
from autotune.executors.base import SessionFailed
from autotune.explain.importance import importance
from autotune.explain.records import BuildUp, Explanation
from autotune.job.configs import key_of, normalise
from autotune.objectives import WHOLE_TRAINING
from autotune.results import Confirmation, Interval, KnobGain, Observation, Trial
from autotune.stages.context import RunContext
from autotune.stages.measuring.series import LiveSeries, Measured
from autotune.verdict.speedup import LogRatio, around
from autotune_spaces.base import Config, Scope, SearchSpace, Value
from autotune_spaces.codec import decode, encode

# share of the run so far; explaining may add 25% in all, most of it for the profiled runs
SHARE = 0.08
ROUNDS = 2  # of a step: a block of the baseline, two with the step, one of the baseline
TOO_LITTLE_TIME = (
    "the steps of the build-up were not measured separately, as that would have taken too long;"
    " figures from the search are shown where available"
)


@dataclass(frozen=True)
class Step:
    """A prefix of the winner: ``name`` and all knobs before it."""

    name: str
    config: Mapping[str, Value]


# a step, its speed-up over the baseline if it is known, and where that is from
Found = tuple[Step, Interval | None, str]


def credit(
    context: RunContext,
    observation: Observation,
    explanation: Explanation,
    confirmation: Confirmation | None,
    gains: Sequence[KnobGain],
    trials: Sequence[Trial],
) -> Explanation:
    """Return ``explanation`` with each knob's part in the result.

    ``confirmation``: of the winner; None: the baseline is kept.
    """
    began = time.monotonic()
    shares, why_none = importance(trials, observation.defaults, observation.noise)
    notes = [f"knob importance: {why_none}"] if why_none and trials else []
    steps: tuple[BuildUp, ...] = ()
    if confirmation is not None:
        steps, said = build_up(context, observation, confirmation, gains, trials)
        notes += said
    wall_s = round(explanation.wall_s + time.monotonic() - began, 1)
    return replace(
        explanation,
        build_up=steps,
        importance=shares,
        wall_s=wall_s,
        notes=(*explanation.notes, *notes),
    )


def build_up(
    context: RunContext,
    observation: Observation,
    confirmation: Confirmation,
    gains: Sequence[KnobGain],
    trials: Sequence[Trial],
) -> tuple[tuple[BuildUp, ...], list[str]]:
    """(the steps from the baseline to the confirmed figure, notes about them)."""
    space = context.spec.search_space
    own = own_gains(confirmation.config, gains, trials)
    steps = prefixes(confirmation.config, own, observation.defaults, space)
    # live figures are of an iteration, and cannot stand beside those of a whole training
    per_iteration = context.spec.objective not in WHOLE_TRAINING
    live = [
        s
        for s in steps[:-1]
        if per_iteration
        and all(space[name].scope_of(v) is Scope.LIVE for name, v in s.config.items())
    ]
    measured, notes = _measure(context, observation, live, trials)
    found: list[Found] = []
    for index, step in enumerate(steps[:-1]):
        key = key_of(step.config)
        later = [s.name for s in steps[index + 1 :]]
        trial = next(
            (
                t
                for t in trials
                if key_of(t.config) == key and t.state == "complete" and t.log_ratio is not None
            ),
            None,
        )
        if key in measured:
            ratio = measured[key]
            found.append((step, around(-ratio.estimate, ratio.standard_error), "live"))
        elif (
            step not in live
            and (rest := without_later(confirmation.speedup, later, gains)) is not None
        ):
            found.append((step, rest, "fresh"))
        elif trial is not None and per_iteration:
            error = math.inf if trial.standard_error is None else trial.standard_error
            found.append((step, around(-(trial.log_ratio or 0.0), error), "search"))
        else:
            found.append((step, None, ""))
    found = cut_at_confirmed(found, confirmation.speedup)
    found.append((steps[-1], confirmation.speedup, "confirmed"))
    return joined(found), notes


def cut_at_confirmed(found: Sequence[Found], confirmed: Interval) -> list[Found]:
    """``found`` with its live figures cut at ``confirmed``: a running job may show more than fresh
    processes do, which is no loss by the last knob.
    """
    most = confirmed.estimate
    return [
        (step, Interval(min(at.estimate, most), min(at.low, most), at.high), source)
        if at and source != "fresh"
        else (step, at, source)
        for step, at, source in found
    ]


def own_gains(
    config: Config, gains: Sequence[KnobGain], trials: Sequence[Trial]
) -> dict[str, float]:
    """Speed-up of each knob by itself; 1.0: unknown.

    Found when it was dropped from the winner, or else when it was tried alone.
    """
    alone = {
        next(iter(t.config)): t.speedup
        for t in trials
        if len(t.config) == 1
        and t.speedup is not None
        and all(config.get(k) == v for k, v in t.config.items())
    }
    dropped = {g.knob: g.speedup.estimate for g in gains if g.speedup is not None}
    return {name: dropped.get(name, alone.get(name, 1.0)) for name in config}


def prefixes(
    config: Config, own: Mapping[str, float], defaults: Mapping[str, Value], space: SearchSpace
) -> list[Step]:
    """Split the winner into steps of one knob: biggest own gain first, process knobs last.

    No knob comes before the one that gives it a meaning.
    """
    left = sorted(
        config, key=lambda name: (space[name].scope_of(config[name]) is Scope.PROCESS, -own[name])
    )
    steps: list[Step] = []
    so_far: dict[str, Value] = {}
    while left:
        name = next(
            (n for n in left if n in normalise({**so_far, n: config[n]}, defaults, space)), left[0]
        )
        left.remove(name)
        so_far[name] = config[name]
        steps.append(Step(name, dict(so_far)))
    return steps


def without_later(
    confirmed: Interval, later: Sequence[str], gains: Sequence[KnobGain]
) -> Interval | None:
    """The confirmed speed-up without what the knobs ``later`` give; None if one is unknown.

    Errors add in squares: the drops were measured in other processes than the confirmation.
    """
    known = {g.knob: g.speedup for g in gains if g.speedup is not None}
    if any(name not in known for name in later):
        return None
    parts = [confirmed, *(known[name] for name in later)]
    if any(not (part.low > 0 and math.isfinite(part.high)) for part in parts):
        return None
    estimate = math.log(confirmed.estimate) - sum(math.log(part.estimate) for part in parts[1:])
    half = math.sqrt(sum((math.log(part.high / part.low) / 2) ** 2 for part in parts))
    return Interval(*(math.exp(estimate + side * half) for side in (0, -1, 1)))


def joined(found: Sequence[Found]) -> tuple[BuildUp, ...]:
    """Merge every step that has no figure of its own into the next one that has."""
    steps: list[BuildUp] = []
    waiting: list[str] = []
    for step, interval, source in found:
        if interval is None:
            waiting.append(step.name)
            continue
        value = step.config[step.name]
        steps.append(
            BuildUp(
                step.name,
                value,
                interval.estimate,
                interval.low,
                interval.high,
                source,
                tuple(waiting),
            )
        )
        waiting = []
    return tuple(steps)


def _measure(
    context: RunContext, observation: Observation, steps: Sequence[Step], trials: Sequence[Trial]
) -> tuple[dict[str, LogRatio], list[str]]:
    """Key of a prefix -> log ratio against the baseline, all in one live session.

    What a resumed run knows is not measured again.
    """
    known: dict[str, LogRatio] = {}
    for step in steps:
        stored = context.journal.find("build-up", key_of(step.config))
        if stored is not None:
            known[key_of(step.config)] = decode(LogRatio, stored)
    missing = [step for step in steps if key_of(step.config) not in known]
    if not missing or context.spec.traces == "none":
        return known, []
    expected_s = observation.startup_s + sum(_expected_s(step.config, trials) for step in missing)
    if context.out_of_time() or expected_s > SHARE * context.journal.elapsed_s:
        return known, [TOO_LITTLE_TIME]
    own = observation.anatomy
    with LiveSeries(context, own.iteration_s, own.iterations, own.peak_memory_gib) as live:
        for step in missing:
            context.progress.measuring("build-up", step.config)
            try:
                blocks = live.measure([{}, step.config, step.config, {}] * ROUNDS)
            except (SessionFailed, BaselineError) as failure:
                return known, [f"the build-up of the gain could not be measured: {failure}"]
            if failed := next((block.failure for block in blocks if block.failure), None):
                return known, [
                    f"the build-up of the gain could not be measured with {step.name}: {failed}"
                ]
            if ratio := _log_ratio(blocks, observation.noise):
                known[key_of(step.config)] = ratio
                context.journal.append("build-up", key_of(step.config), encode(ratio))
            context.stop.check()
    return known, []


def _log_ratio(blocks: Sequence[Measured], noise: float) -> LogRatio | None:
    """log(cost of the step's blocks / of the baseline's); None if too few of a side were measured.

    ``noise``: least standard deviation of a block's log cost.
    """
    measured = [block for block in blocks if block.log_cost is not None]
    with_step = [block.log_cost or 0.0 for block in measured if block.config]
    own = [block.log_cost or 0.0 for block in measured if not block.config]
    count = min(len(with_step), len(own))
    if count < 2:
        return None
    errors = [max(stdev(side), noise) / math.sqrt(len(side)) for side in (with_step, own)]
    return LogRatio(fmean(with_step) - fmean(own), math.hypot(*errors), count)


def _expected_s(config: Config, trials: Sequence[Trial]) -> float:
    """Estimated seconds to compare ``config``, from the trials of its knobs alone."""
    live = [t for t in trials if t.state == "complete" and t.origin != "process"]
    alone = [
        t.wall_s
        for t in live
        if len(t.config) == 1 and all(config.get(k) == v for k, v in t.config.items())
    ]
    return max(alone, default=median([t.wall_s for t in live] or [0.0]))
