"""Finds the smallest change that keeps the gain: drops each knob of a finalist in turn.

Knobs that only fresh runs can judge were judged when they were tried (worth_it.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.executors.base import SessionFailed
from autotune.job.configs import key_of, normalise, process_part, without
from autotune.results import KnobGain, Observation, Trial
from autotune.stages.context import RunContext
from autotune.stages.decisions.worth_it import break_even_steps, paid_back_words
from autotune.stages.measuring.kept_session import BlockFailed
from autotune.stages.measuring.live_comparison import LiveComparison
from autotune.verdict.speedup import MINIMUM_GAIN, LogRatio, around
from autotune_spaces.base import Config, Value
from autotune_spaces.codec import decode, encode


def simplify(
    context: RunContext,
    observation: Observation,
    config: Config,
    trials: Sequence[Trial],
    settled: Sequence[KnobGain] = (),
) -> tuple[dict[str, Value], tuple[KnobGain, ...]]:
    """Drop each knob in turn, least promising first; returns (what remains, the gain of each knob).

    A single knob has already been measured against the baseline, by the trial that tried it.

    Args:
        settled: gains known already: these knobs are not dropped again.
    """
    stored = context.journal.find("simplified", key_of(config))
    if stored is not None:
        return stored["config"], tuple(decode(KnobGain, g) for g in stored["gains"])
    kept, gains = dict(config), list(settled)
    known = {gain.knob for gain in settled}
    process, own = process_part(config, context.spec.search_space), observation.anatomy
    whole = next((t for t in trials if key_of(t.config) == key_of(config)), None)
    log_ratio = (whole and whole.log_ratio) or 0.0
    with LiveComparison(
        context, process, observation.noise, own.iterations, own.peak_memory_gib
    ) as live:
        for name in _least_promising_first(config, trials):
            if name not in kept or name in known:
                continue  # dropped with the knob it depends on, or settled
            tried = _trial_gain(kept, trials)
            gain = tried if tried is not None else _gain(live, kept, name)
            start_up_s = _start_up_s(context, name, kept, trials)
            slowdown = 0.0 if gain is None else gain.estimate  # without the knob
            without_s = own.iteration_s * math.exp(min(log_ratio + slowdown, 0.0))
            keep, reason, steps = _worth_it(
                context, gain, start_up_s, without_s, last=len(kept) == 1
            )
            # beside the confirmed figure of the same knob, a live one would only confuse
            shown = (
                around(gain.estimate, gain.standard_error)
                if gain is not None and tried is None
                else None
            )
            gains.append(KnobGain(name, kept[name], shown, keep, reason, start_up_s, steps))
            if not keep:
                log_ratio += slowdown
                kept = _without(kept, name, observation, context)
                live.process_config = process_part(kept, context.spec.search_space)
                context.progress.note(f"{name} dropped: {reason}")
    context.journal.append("simplified", key_of(config), {"config": kept, "gains": encode(gains)})
    return kept, tuple(gains)


def _least_promising_first(config: Config, trials: Sequence[Trial]) -> list[str]:
    alone = {
        next(iter(t.config)): t.log_ratio or 0.0
        for t in trials
        if len(t.config) == 1 and t.log_ratio is not None
    }
    return sorted(config, key=lambda name: -alone.get(name, 0.0))


def _without(
    config: Config, name: str, observation: Observation, context: RunContext
) -> dict[str, Value]:
    return normalise(without(config, name), observation.defaults, context.spec.search_space)


def _trial_gain(config: Config, trials: Sequence[Trial]) -> LogRatio | None:
    """What the search measured last for a configuration of one knob; None for larger ones."""
    for t in reversed(trials):
        if len(config) == 1 and dict(t.config) == dict(config) and t.log_ratio is not None:
            return LogRatio(-t.log_ratio, t.standard_error or 0.0, t.pairs)
    return None


def _gain(live: LiveComparison, config: Config, name: str) -> LogRatio | None:
    """log(cost without the knob / cost with it) in the running job.

    None if one of the two could not be measured.
    """
    try:
        return live.compare(without(config, name), config, prune=False, enough=_settled).ratio
    except (BlockFailed, SessionFailed):
        return None


def _settled(gain: LogRatio) -> bool:
    """Whether the gain is two standard errors from the minimum: more pairs would change nothing."""
    return abs(gain.estimate - math.log1p(MINIMUM_GAIN)) > 2 * gain.standard_error


def _start_up_s(context: RunContext, name: str, config: Config, trials: Sequence[Trial]) -> float:
    """One-time start-up cost of the knob: settling time of the smallest configuration with it."""
    if not context.spec.search_space[name].start_up_cost:
        return 0.0
    with_it = [t for t in trials if t.config.get(name) == config[name] and t.settle_s]
    return max((t.settle_s for t in sorted(with_it, key=lambda t: len(t.config))[:1]), default=0.0)


def _worth_it(
    context: RunContext, gain: LogRatio | None, start_up_s: float, without_s: float, last: bool
) -> tuple[bool, str, int | None]:
    """(whether a knob is kept, why, steps until its start-up cost is paid back).

    Args:
        without_s: an iteration without it.
        last: no other knob is left. The confirmation then judges its gain, since it knows more than
            one drop can show; only the start-up cost is judged here.
    """
    if gain is None:
        return True, "the job could not be measured without it", None
    factor = math.exp(gain.estimate)
    if not last and (
        gain.estimate < math.log1p(MINIMUM_GAIN) or gain.estimate < 2 * gain.standard_error
    ):
        return (
            False,
            f"{factor:.2f}× on its own, within the noise or below {MINIMUM_GAIN:.0%}",
            None,
        )
    steps = break_even_steps(start_up_s, gain.estimate, without_s)
    if steps is None:
        return True, "" if last else f"{factor:.2f}× on its own", None
    if steps > context.spec.planned_steps:
        return False, f"{factor:.2f}×, but {paid_back_words(start_up_s, steps)}", steps
    paid_back = f"its {start_up_s:.0f} s of start-up are paid back after {steps} steps"
    return True, f"{factor:.2f}× on its own; {paid_back}", steps
