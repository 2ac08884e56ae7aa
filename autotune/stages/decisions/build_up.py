"""How the gain builds up, knob by knob: a part of EXPLAIN.

    baseline │ + knob with the biggest own gain │ + next │ … │ + last = the confirmed figure

The last step is the confirmed speed-up with its interval. Each step before it is that figure
without the own gains of the knobs that follow. Where own gains add up to more than the confirmed
speed-up, as a running job may show more than a fresh process, each is taken for its share of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.explain.importance import importance
from autotune.explain.records import BuildUp, Explanation
from autotune.job.configs import normalize
from autotune.results import Confirmation, Interval, KnobGain, Observation, Trial
from autotune_spaces.base import Config, SearchSpace, Value


def credit(
    space: SearchSpace,
    observation: Observation,
    explanation: Explanation,
    confirmation: Confirmation | None,
    gains: Sequence[KnobGain],
    trials: Sequence[Trial],
) -> Explanation:
    """Return ``explanation`` with each knob's part in the result.

    ``confirmation``: of the winner; None: the baseline is kept.
    """
    shares, why_none = importance(trials, observation.defaults, observation.noise)
    notes = [f"knob importance: {why_none}"] if why_none and trials else []
    steps: tuple[BuildUp, ...] = ()
    if confirmation is not None:
        steps = build_up(confirmation, gains, observation.defaults, space)
    return replace(
        explanation, build_up=steps, importance=shares, notes=(*explanation.notes, *notes)
    )


def build_up(
    confirmation: Confirmation,
    gains: Sequence[KnobGain],
    defaults: Mapping[str, Value],
    space: SearchSpace,
) -> tuple[BuildUp, ...]:
    """The steps from the baseline to the confirmed figure.

    A knob without a known own gain shares a step with the next one.
    """
    config, confirmed = confirmation.config, confirmation.speedup
    own = {g.knob: g.speedup for g in gains if g.speedup is not None}
    names = by_gain(config, {name: gain.estimate for name, gain in own.items()}, defaults, space)
    total = sum(math.log(own[name].estimate) for name in names if name in own)
    share = min(1.0, math.log(confirmed.estimate) / total) if total > 0 else 1.0
    own = {n: Interval(g.estimate**share, g.low**share, g.high**share) for n, g in own.items()}
    steps: list[BuildUp] = []
    waiting: list[str] = []
    for place, name in enumerate(names, 1):
        at = without(confirmed, [own.get(later) for later in names[place:]])
        if at is None:
            waiting.append(name)
            continue
        source = "confirmed" if place == len(names) else "own gains"
        figures = (at.estimate, at.low, at.high)
        steps.append(BuildUp(name, config[name], *figures, source, tuple(waiting)))
        waiting = []
    return tuple(steps)


def by_gain(
    config: Config, own: Mapping[str, float], defaults: Mapping[str, Value], space: SearchSpace
) -> list[str]:
    """The knobs of ``config``, the biggest own gain first.

    No knob comes before the one that gives it a meaning.
    """
    left = sorted(config, key=lambda name: -own.get(name, 1.0))
    names: list[str] = []
    so_far: dict[str, Value] = {}
    while left:
        name = next(
            (n for n in left if n in normalize({**so_far, n: config[n]}, defaults, space)), left[0]
        )
        left.remove(name)
        so_far[name] = config[name]
        names.append(name)
    return names


def without(confirmed: Interval, gains: Sequence[Interval | None]) -> Interval | None:
    """``confirmed`` without ``gains``; None if one of them is unknown.

    Errors add in squares: the gains were not measured in the processes of the confirmation.
    """
    parts = [confirmed, *gains]
    known = [part for part in parts if part and part.low > 0 and math.isfinite(part.high)]
    if len(known) < len(parts):
        return None
    if not gains:
        return confirmed
    estimate = math.log(confirmed.estimate) - sum(math.log(part.estimate) for part in known[1:])
    half = math.hypot(*(math.log(part.high / part.low) / 2 for part in known))
    return Interval(*(math.exp(estimate + side * half) for side in (0, -1, 1)))
