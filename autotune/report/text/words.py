"""Results as words; the plain ones of :mod:`autotune.words` are here, too."""

from __future__ import annotations

import math
from typing import TypeGuard

from autotune.explain.records import Explanation
from autotune.results import Interval, Trial
from autotune.words import (
    NOT_MEASURED,
    clean,
    clock_words,
    config_words,
    duration_words,
    factor_words,
    for_encoding,
    known,
    number_words,
    plural,
    value_words,
)

__all__ = [
    "NOISY",
    "NOT_MEASURED",
    "clean",
    "clock_words",
    "config_words",
    "duration_words",
    "factor_words",
    "for_encoding",
    "interval_words",
    "known",
    "measured",
    "number_words",
    "plural",
    "range_words",
    "trial_interval",
    "trial_words",
    "value_words",
]

# A baseline that differs this much from itself between neighbouring blocks cannot show the gains of
# a few percent
# that most knobs give: pyperf warns at a standard deviation of 10 % of the mean, we at half of it.
NOISY = 0.05
Z95 = 1.96  # half-width of a 95 % normal interval in standard errors


def why_not_profiled(explanation: Explanation) -> str:
    """What stands where there are no figures of a profiled run."""
    notes = " ".join(map(clean, explanation.notes))
    return notes or "The run was made with traces: none, or could not be profiled."


def measured(interval: Interval | None) -> TypeGuard[Interval]:
    """False for a missing interval and for one with a hole in it."""
    return (
        interval is not None
        and known(interval.estimate)
        and known(interval.low)
        and known(interval.high)
    )


def range_words(interval: Interval) -> str:
    return f"{interval.low:.2f}–{interval.high:.2f}"


def interval_words(interval: Interval | None) -> str:
    """``1.62× (1.50–1.75)``"""
    if interval is None or not known(interval.estimate):
        return NOT_MEASURED
    return (
        f"{factor_words(interval.estimate)} ({range_words(interval)})"
        if measured(interval)
        else factor_words(interval.estimate)
    )


def trial_interval(trial: Trial) -> Interval | None:
    """Speed-up of a trial in the search with its normal 95 % interval; the bounds are NaN with too
    few pairs to tell.

    Live pairs come from one process, so this interval is too narrow to be reported as a result; it
    steers the search.
    """
    if not known(trial.log_ratio):
        return None
    half = Z95 * trial.standard_error if known(trial.standard_error) else math.nan
    return Interval(*(math.exp(min(-trial.log_ratio + step, 700.0)) for step in (0.0, -half, half)))


def trial_words(trial: Trial) -> str:
    """``1.83× ± 4 %`` for a measured trial, its state otherwise."""
    interval = trial_interval(trial)
    if interval is None:
        return clean(trial.state, 12)
    if not measured(interval):
        return factor_words(interval.estimate)
    percent = 100 * (interval.high / interval.estimate - 1)
    return (
        f"{factor_words(interval.estimate)} ± {percent:.1f} %"
        if percent < 1
        else f"{factor_words(interval.estimate)} ± {percent:.0f} %"
    )
