"""Finds the knob that changes the loss, so that the others can be kept.

    whole configuration: changed ──▶ each knob by itself, against the existing baseline runs ──▶ those that change it

Knobs are tested alone rather than left out one at a time: with two culprits, leaving out either one
still leaves a changed loss. A knob whose effect is unclear by itself counts as a culprit: it would
not be adopted either.
"""

from __future__ import annotations

from autotune.job.configs import normalize
from autotune.results import LossVerdict, Observation
from autotune.stages.context import RunContext
from autotune.stages.converge import converge_alone
from autotune.stages.measuring.pairs import Pairs
from autotune_spaces.base import Config, Numerics, Value


def culprits(
    context: RunContext, observation: Observation, config: Config, pairs: Pairs
) -> dict[str, LossVerdict]:
    """Knobs of ``config`` that change the loss by themselves, with the evidence.

    {} if none does (they do it together), or if time does not suffice to find out. Knobs that may
    change it are tried first; those declared exact only if there is no culprit among the others.
    Beyond the budget, only the first one is tried.
    """
    if len(config) == 1:
        return {}
    space = context.spec.search_space
    suspects = sorted(config, key=lambda name: -space[name].numerics.severity)
    found: dict[str, LossVerdict] = {}
    ahead_s = len(pairs.reference) * pairs.pair_s() / 2  # one run beside each of the baseline's
    for place, name in enumerate(suspects):
        exact = space[name].numerics is Numerics.EXACT
        if exact and found:
            break
        if (place or exact) and context.out_of_time_at(
            f"{pairs.label}-only-{name}", ahead_s, context.announced_s
        ):
            left = ", ".join(suspects[place:])
            context.progress.note(f"no time left to see whether {left} by itself changes the loss")
            break
        verdict = _alone(context, observation, name, config[name], pairs)
        if verdict is not None and verdict.verdict in ("changed", "undecided"):
            context.progress.note(
                f"{name}={config[name]} by itself: loss {verdict.verdict}, {verdict.reason}"
            )
            found[name] = verdict
    return found


def _alone(
    context: RunContext, observation: Observation, name: str, value: Value, pairs: Pairs
) -> LossVerdict | None:
    """The verdict on one knob; None if it means nothing alone (prefetch_factor without workers)."""
    config = normalize({name: value}, observation.defaults, context.spec.search_space)
    if not config:
        return None
    context.progress.note(f"looking for the knob that changes the loss: {name}={value} by itself")
    return converge_alone(context, config, pairs, f"{pairs.label}-only-{name}")
