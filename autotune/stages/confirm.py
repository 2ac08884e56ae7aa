"""CONFIRM: the finalists in fresh processes, against the baseline.

How many pairs there is time for is decided after the first five, from how long they took: a look
that is planned but never reached would only raise the bar for those before it. A candidate is
adopted only if its whole interval lies above "no gain"; a tie goes to the baseline. Only these
figures are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from autotune.executors.base import SessionFailed
from autotune.job.configs import key_of, normalize, without
from autotune.objectives import BETTER
from autotune.results import NO_GAIN, Confirmation, Interval, Observation
from autotune.stages.budget import explain_s
from autotune.stages.context import KILLS, OVER, RunContext
from autotune.stages.measuring.fresh import rounds
from autotune.stages.measuring.may_interleave import may_interleave
from autotune.stages.measuring.pair_figures import PairFigures
from autotune.stages.measuring.pairs import Pairs
from autotune.verdict.runs import loss_run
from autotune.verdict.speedup import (
    FALSE_ADOPTIONS,
    LOOKS,
    SHARP,
    adopted_text,
    around,
    decide,
    half_width,
    planned,
    sharpened,
)
from autotune.words import duration_words, factor_words, no_effect_words
from autotune_spaces.base import Config

VARIANTS = len(FALSE_ADOPTIONS)  # confirmations that one run may attempt


def confirm(
    context: RunContext, observation: Observation, config: Config, pairs: Pairs, finalist: int
) -> Confirmation:
    """Run fresh processes until the interval decides, or the looks or the minutes are used up.

    The first look is always taken. Further ones are planned only if they and the explanation end
    within the budget plus a tenth, or within the longer time that was announced.

    Args:
        finalist: how many this run has confirmed before.

    Raises:
        BaselineError: the unchanged job fails, or cannot be timed.
    """
    how = "in alternating slices" if may_interleave(context, config) else "one after the other"
    context.progress.stage("confirm", f"fresh processes, baseline and candidate {how}")
    look, looks = 0, planned(LOOKS[0])
    while True:
        try:
            pairs.ensure(looks[look])
        except SessionFailed as failure:
            return _rejected(config, _failed_text(failure))
        if why := pairs.beyond_limits(observation):
            return _rejected(config, f"it {why}")
        if look == 0:
            if useless := pairs.useless:
                context.progress.warning(f"in fresh processes {no_effect_words(useless)}")
            space, idle = context.spec.search_space, pairs.idle
            if idle and not normalize(without(config, *idle), observation.defaults, space):
                return _rejected(config, f"in fresh processes {no_effect_words(idle)}")
            looks = planned(_room(context, observation, config, pairs))
        ratios, levels = pairs.figures.log_speedups(), pairs.figures.log_levels()
        decision = decide(
            ratios,
            look=look,
            levels=levels,
            looks=looks,
            finalist=finalist,
            better=BETTER[context.spec.objective],
        )
        if decision.state != "continue":
            break
        ahead_s = _ahead_s(context, looks[look : look + 2], pairs.pair_s())
        place = f"{pairs.label}|{key_of(config)}|{looks[look]}"
        if context.out_of_time_at(place, ahead_s, context.announced_s):
            decision = replace(
                decision, state="reject", reason=f"{decision.reason}; {context.out_of_time_words()}"
            )
            break
        look += 1
    if decision.state == "adopt" and context.spec.objective == "throughput":
        if reason := _drawback(pairs.figures, decision.interval.estimate):
            decision = replace(decision, state="reject", reason=reason)
    before, after = pairs.figures.anatomies()
    confirmation = Confirmation(
        config=config,
        speedup=decision.interval,
        pairs=len(pairs.figures.log_speedups()),
        adopted=decision.state == "adopt",
        reason=decision.reason,
        baseline_anatomy=before,
        anatomy=after,
        too_noisy=decision.too_noisy,
        required_pairs=decision.required_pairs,
        first_epoch_only=pairs.figures.first_epoch_only,
        second=_second(pairs),
        training=pairs.figures.training_time(decision.interval.estimate),
        interleaved=pairs.interleaved,
    )
    context.progress.confirmed(confirmation)
    return confirmation


def _rejected(config: Config, reason: str) -> Confirmation:
    """Without a figure."""
    return Confirmation(config, NO_GAIN, 0, False, reason)


def _drawback(figures: PairFigures, speedup: float) -> str:
    """Why the training as a whole does not gain from iterations that are ``speedup`` times as fast;
    "" if it does.
    """
    if longer := figures.no_gain_with_evaluation():
        return (
            "its iterations are faster, but including evaluation and other work between them, each"
            f" sample takes {factor_words(longer)} as long"
        )
    if stalled := figures.no_gain_with_stalls():
        return (
            f"most iterations are faster, but it stalls: counting all stalls it reaches"
            f" {factor_words(stalled)}"
        )
    training = figures.training_time(speedup)
    if training is not None and training.cold_s >= training.before_s:
        took, takes = map(duration_words, (training.before_s, training.cold_s))
        return (
            f"its iterations are faster, but it starts up so slowly that {training.steps} steps"
            f" (planned_steps) take {takes} instead of {took}"
        )
    return ""


def _room(context: RunContext, observation: Observation, config: Config, pairs: Pairs) -> int:
    """How many pairs there is time for, judged by the first ones.

    Decided once, also for a resumed run with more minutes: a past decision has spent its share of
    the risk.
    """
    place = f"{pairs.label}|{key_of(config)}"
    room: int | None = context.journal.find("room", place)
    if room is None:
        after_s = explain_s(context, observation)

        def fits(count: int) -> bool:
            ahead_s = _ahead_s(context, planned(count), pairs.pair_s()) + after_s
            return not context.out_of_time(ahead_s, context.announced_s)

        room = next(filter(fits, reversed(LOOKS)), LOOKS[0])
        context.journal.append("room", place, room)
    return room


def _ahead_s(context: RunContext, looks: Sequence[int], each_s: float) -> float:
    """Seconds for the pairs after the first of ``looks``; pairs of one look are made together."""
    return each_s * sum(rounds(context, b - a) for a, b in pairwise(looks))


def sharpen(
    context: RunContext,
    observation: Observation,
    confirmation: Confirmation,
    label: str,
    cold_s: float = 0.0,
) -> Confirmation:
    """Add pairs to a proven candidate while its interval is wide and the budget has minutes left.

    The candidate was adopted and trains the same. That stands unless one of these runs fails,
    diverges or takes too much memory. ``label``, ``cold_s``: of the adopted pairs.

    Raises:
        BaselineError: the unchanged job fails.
    """
    config, pairs = confirmation.config, Pairs(context, confirmation.config, {}, label, cold_s)
    further = False
    for look, count in enumerate(LOOKS):
        if count < confirmation.pairs:
            continue
        if count > confirmation.pairs:
            if half_width(confirmation.speedup) <= SHARP:
                break
            # the loss check has made some of them already
            ahead_s = rounds(context, pairs.missing(count)) * pairs.pair_s()
            in_time_s = ahead_s + explain_s(context, observation)
            in_time_s += (OVER - 1) * context.spec.budget.minutes * 60
            if ahead_s and context.out_of_time_at(f"sharpen|{key_of(config)}|{count}", in_time_s):
                break
            if not further:
                context.progress.stage(
                    "confirm", "more pairs: the interval is wide, and there is time left"
                )
            further = True
        try:
            pairs.ensure(count)
        except SessionFailed as failure:
            return replace(confirmation, adopted=False, reason=_failed_text(failure))
        if why := pairs.beyond_limits(observation):
            return replace(confirmation, adopted=False, reason=f"it {why}")
        if not further:
            continue  # these are the adopted pairs
        if (seed := _diverged(pairs)) is not None:
            reason = f"its loss was NaN or infinite in run {seed + 1}, after the loss check"
            return replace(confirmation, adopted=False, reason=reason)
        interval = sharpened(
            confirmation.speedup,
            pairs.figures.log_speedups(),
            look=look,
            levels=pairs.figures.log_levels(),
        )
        before, after = pairs.figures.anatomies()
        confirmation = replace(
            confirmation,
            speedup=interval,
            pairs=count,
            reason=adopted_text(interval, count, BETTER[context.spec.objective]),
            baseline_anatomy=before,
            anatomy=after,
            second=_second(pairs),
            training=pairs.figures.training_time(interval.estimate),
            interleaved=pairs.interleaved,
        )
    if further:
        context.progress.confirmed(confirmation)
    return confirmation


def _second(pairs: Pairs) -> Interval | None:
    """Speed-up by the second objective, two standard errors to each side; it decides nothing."""
    gain = pairs.figures.second_gain()
    if gain is None:
        return None
    return around(gain.estimate, gain.standard_error)


def _diverged(pairs: Pairs) -> int | None:
    """The first seed whose loss became NaN or infinite with the candidate alone; None: none did."""
    for seed in sorted(pairs.candidate.keys() & pairs.reference.keys()):
        runs = (loss_run(pairs.candidate[seed]), loss_run(pairs.reference[seed]))
        if runs[0].first_non_finite() is not None and runs[1].first_non_finite() is None:
            return seed
    return None


def _failed_text(failure: SessionFailed) -> str:
    often = f"was killed {KILLS} times" if failure.kind == "killed" else "failed"
    return f"it {often} in a fresh process ({failure})"
