"""What each knob gains: the adopted ones, those reset, how the gain builds up, which ones mattered."""

from __future__ import annotations

from dataclasses import dataclass

from autotune import words
from autotune.objectives import GAIN, WHOLE_TRAINING
from autotune.results import PROVEN_ANEW, Interval, KnobGain, Result
from autotune_spaces import knobs as knob_registry
from autotune_spaces.base import Value

AS_LAST_TUNED = "as measured when last tuned"
SHOWS_LESS = "gains more in a fresh process; a running job shows only part of it"


@dataclass(frozen=True)
class Change:
    """One tuned knob: its old value, its new value, and its own gain."""

    knob: str
    was: str
    now: str
    gain: str
    speedup: Interval | None
    note: str


def changes(result: Result) -> list[Change]:
    """The adopted knobs: the smallest change that gives the speed-up."""
    gains = {gain.knob: gain for gain in result.gains}
    return [_change(result, knob, value, gains.get(knob)) for knob, value in result.knobs.items()]


def _change(result: Result, knob: str, value: Value, gain: KnobGain | None) -> Change:
    was = words.value_words(result.baseline[knob]) if knob in result.baseline else "the job's own"
    speedup = gain.speedup if gain is not None else None
    if speedup is not None and words.known(speedup.estimate):
        said = words.interval_words(speedup)
        if gain is not None and gain.at_least:
            said = f"at least {words.factor_words(speedup.estimate)}"
    else:
        # A single changed knob accounts for the whole speed-up; with several, only measuring tells.
        said = "all of it" if len(result.knobs) == 1 else "not measured alone"
    return Change(
        words.clean(knob, 60),
        was,
        words.value_words(value),
        said,
        speedup,
        _note(result, knob, value, gain),
    )


def _note(result: Result, knob: str, value: Value, gain: KnobGain | None) -> str:
    remark = ""
    if knob in result.knobs and knob in knob_registry.names():
        remark = knob_registry.get(knob).remark(value, result.baseline.get(knob))
    parts = (_gain_note(gain, result.environment.get("planned_steps")), remark)
    old = are_old(result) and gain is not None and gain.speedup is not None
    return "; ".join(part for part in (AS_LAST_TUNED if old else "", *parts) if part)


def own_gain_words(result: Result) -> str:
    """What the gain of a single knob means; "" if fewer than two were measured."""
    measured = [change for change in changes(result) if change.speedup is not None]
    if len(measured) < 2 or are_old(result):
        return ""
    return (
        "Own gain: all these settings compared with all but this one. Gains do not simply multiply."
    )


def are_old(result: Result) -> bool:
    """Whether the knobs' own gains are those of the recorded run."""
    return result.recalled.outcome == PROVEN_ANEW


def _gain_note(gain: KnobGain | None, planned_steps: object) -> str:
    if gain is None:
        return ""
    parts = [SHOWS_LESS] if gain.at_least else []
    if words.known(gain.start_up_s) and gain.start_up_s > 0:
        said = f"costs {words.duration_words(gain.start_up_s)} at start"
        if gain.break_even_steps is not None:
            said += f", paid back after {words.plural(gain.break_even_steps, 'step')}"
            said += f" of {planned_steps:,} planned" if words.known(planned_steps) else ""
        parts.append(said)
    if gain.reason and (gain.speedup is None or not gain.kept):
        parts.append(words.clean(gain.reason))
    return "; ".join(parts)


def given_back(result: Result) -> list[Change]:
    """Knobs of the winner that were reset to the job's own value, as they gained nothing alone."""
    return [
        _change(result, gain.knob, gain.value, gain)
        for gain in result.gains
        if not gain.kept and gain.knob not in result.knobs
    ]


def gain_name(result: Result) -> str:
    """``speed-up``, or what else the objective's factor is."""
    return GAIN.get(str(result.environment.get("objective")), "speed-up")


def trial_gain_name(result: Result) -> str:
    """The same for a trial, whose figure is of an iteration."""
    if result.environment.get("objective") in WHOLE_TRAINING:
        return "speed-up"
    return gain_name(result)


def build_up_words(result: Result) -> str:
    """What the waterfall shows and how certain its steps are; "" if there is none."""
    steps = result.explanation.build_up
    if not steps:
        return ""
    said = f"Each bar is the {gain_name(result)} with this knob and all above it, over the job as it is."
    if len(steps) > 1:
        said += (
            " Those before the last one are the confirmed figure without the own gains of the knobs"
            " below, which are only indicative."
        )
    if any(step.together_with for step in steps):
        said += " Knobs in one bar were not measured separately."
    return said + " The last bar is the confirmed figure, from fresh processes."


def knob_shares(result: Result) -> dict[str, float]:
    """knob -> its share of the differences between the trials; {} if that was not computed."""
    shares = {
        words.clean(knob, 40): share
        for knob, share in result.explanation.importance.items()
        if words.known(share)
    }
    return shares if max(shares.values(), default=0.0) > 0 else {}


def no_importance(result: Result) -> str:
    """Why there is no knob importance."""
    mark = "knob importance: "
    notes = result.explanation.notes
    said = next((n.removeprefix(mark) for n in notes if n.startswith(mark)), "")
    return f"Not computed: {words.clean(said)}." if said else "Not computed in this run."
