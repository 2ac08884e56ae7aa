"""From costs per sample to "faster", with its interval.

    search    blocks of one process             autotune/search/model   steers, is never reported
    confirm   B│C  C│B  B│C …   5 to 24 pairs   decide                  the only figure reported

Live intervals are too narrow (in trials, 84–87% coverage of a nominal 95%), because a process
that is never restarted keeps its memory layout, lucky or not. Fresh processes give each pair an
independent draw of that luck; the robust mean keeps pairs hit by a burst of other load from
deciding (sequential.py: its interval at each look).

Sources: T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time" (2013), for repeating
at the level that varies, the process; B. Efron and C. Morris, "Data analysis using Stein's
estimator", J. Am. Stat. Assoc. 70 (1975), for shrinking an estimate towards no gain according to
its error. Rules that were tried and rejected: benchmarks/verdicts/simulated.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.results import Interval
from autotune.verdict.sequential import EARLY, critical_value, robust_mean, t_quantile

# pairs of fresh processes at which a decision is tried; beyond 9 only near-proofs continue
LOOKS = (5, 7, 9, 12, 16, 20, 24)
ALPHA = 0.05  # probability that one candidate's interval misses, over all looks
# probability that the lower end of a finalist's interval, which decides adoption, is too high: 1%
# for all finalists of a run, most of it for the first, which the search ranks best
FALSE_ADOPTIONS = (0.005, 0.0025, 0.0025)
UPPER_TAIL = 0.02  # probability that an upper end is too low
# lower tail of the intervals with pairs made after an adoption: all tails together are ALPHA
SHARP_TAIL = 0.005
# standard errors by which a mean may be too low: if the last look would reject even then, stop now
HOPE = 2.4
# smaller gains are not worth the risk
MINIMUM_GAIN = 0.02
# share of the estimate that the plain mean of all pairs, outliers included, has to show
BACKED = 0.5
# target half width of an adopted interval, log units: a wider one gets more pairs if time is left
SHARP = 0.05
REPORTED_PAIRS_LIMIT = 1000  # beyond this, "more pairs" is no useful advice


@dataclass(frozen=True)
class LogRatio:
    """Mean log ratio of two configurations' costs. The tuner puts the reference's on top: positive is
    faster.
    """

    estimate: float
    standard_error: float  # infinite: a single pair and unknown noise
    pairs: int


@dataclass(frozen=True)
class SpeedDecision:
    state: str  # "adopt", "reject", "continue"
    interval: Interval  # cost baseline / cost candidate: above 1 is faster
    reason: str
    # rejected because the interval stayed too wide, not for lack of a gain
    too_noisy: bool = False
    # pairs needed if too_noisy; None: more pairs will not help
    required_pairs: int | None = None


def noise_of(costs: Sequence[float]) -> float:
    """Standard deviation of the log of consecutive ``costs``, after removing a linear drift.

    With only two costs the drift is not removed.

    Raises:
        ValueError: fewer than two costs, or one that is not positive.
    """
    n = len(costs)
    if n < 2:
        raise ValueError(f"noise needs two blocks or more, not {n}")
    logs = [_log(c) for c in costs]
    if n == 2:
        return abs(logs[1] - logs[0]) / math.sqrt(2)
    middle, mean = (n - 1) / 2, fmean(logs)
    slope = math.fsum((i - middle) * y for i, y in enumerate(logs)) / math.fsum(
        (i - middle) ** 2 for i in range(n)
    )
    return math.sqrt(
        math.fsum((y - mean - slope * (i - middle)) ** 2 for i, y in enumerate(logs)) / (n - 2)
    )


def planned(most: float) -> tuple[int, ...]:
    """The looks of a confirmation that has room for ``most`` pairs; always includes the first.

    Each planned look uses a share of the level, so looks that will never be reached must not be
    planned: with 24 pairs planned, the first five have to lie 10 errors above "no gain", with no
    others planned 5.
    """
    return tuple(look for look in LOOKS if look <= max(most, LOOKS[0]))


def decide(
    log_ratios: Sequence[float],
    *,
    look: int,
    levels: Sequence[float] | None = None,
    looks: Sequence[int] = LOOKS,
    finalist: int = 0,
    better: str = "faster",
) -> SpeedDecision:
    """Adopt, reject, or continue to the next look.

        adopt      the whole interval is above 1, the estimate is at least 1 + MINIMUM_GAIN, and the plain mean of all pairs shows at least half of it
        reject     the whole interval is below 1 + MINIMUM_GAIN, or this was the last look, or waiting for it is pointless
        continue   otherwise

    The interval has 95% coverage no matter at which look it is reported. Only its lower end can
    adopt a candidate that is not faster, so it has a small level of its own: its share of the
    allowed false adoptions.

    The interval is that of an ordinary pair: slow pairs and outliers count less, because bursts of
    other load hit both sides alike. A candidate that is slow in a part of its own processes would be
    forgiven just those, hence the condition on the plain mean.

    Waiting is pointless if the last look would not adopt even if the mean were now too low by
    :data:`HOPE` standard errors. Stopping early for that reason adopts nothing wrongly, and the
    interval remains valid.

    The estimate of an adopted candidate is shrunk towards 1: what passes a bar is on average too
    high, the more so the closer it passed. With T = estimate / error, a share 1 / T² of the
    estimate's square is error, so the share 1 - 1 / T² of the estimate is kept (Efron and Morris).
    T² is itself too high: by f / (f - 2) on average, because the error is known from f degrees of
    freedom only, and by more because passing the bar favors small errors; (f + 2) / (f - 2) is
    what simulations call for. The interval is not changed and contains the shrunk estimate.

    Args:
        log_ratios: log(cost baseline / cost candidate), one per interleaved pair of fresh
            processes.
        look: index of this look, from 0.
        levels: mean of the two log costs per pair: how slow the machine was then (sequential.py).
            None: unknown.
        looks: number of pairs at each planned look (:func:`planned`).
        finalist: how many candidates were confirmed before; all share the risk.
        better: the word for a ratio above 1.

    Raises:
        ValueError: no ratios, a ratio or level that is not finite, another number of levels, or
            ``look`` out of range.
    """
    pairs, lower = len(log_ratios), FALSE_ADOPTIONS[finalist]
    centre, error, freedom, low, high = _look(log_ratios, levels, look, looks, lower)
    wanted = math.log1p(MINIMUM_GAIN)
    estimate = _drawn(centre, error, freedom) if low > 0 else centre
    interval = Interval(math.exp(estimate), _exp(low), _exp(high))
    figures = _figures(interval, pairs)
    proven = low > 0 and estimate >= wanted
    plain = fmean(log_ratios)
    if proven and plain >= BACKED * estimate:
        return SpeedDecision("adopt", interval, adopted_text(interval, pairs, better))
    if high < 0:
        worse = "slower" if better == "faster" else "worse"
        return SpeedDecision("reject", interval, f"{worse}: {figures}")
    if high < wanted:
        return SpeedDecision(
            "reject", interval, f"no gain of {MINIMUM_GAIN:.0%} or more: {figures}"
        )
    if look < len(looks) - 1 and (
        not freedom or _can_still_adopt(centre, error, pairs, looks, lower, wanted)
    ):
        return SpeedDecision("continue", interval, f"{figures} is inconclusive")
    if proven:
        mean = _times(math.exp(plain))
        return SpeedDecision(
            "reject",
            interval,
            f"{better} in most pairs but not in all: {figures}, while the mean of all pairs is {mean}",
        )
    if low > 0:
        return SpeedDecision(
            "reject", interval, f"{better}, but by less than {MINIMUM_GAIN:.0%}: {figures}"
        )
    if estimate < wanted:
        wide = high > 2 * SHARP
        what = f"a gain of {MINIMUM_GAIN:.0%} or more"
        said = f"too noisy to tell whether there is {what}" if wide else f"no {what[2:]} is shown"
        return SpeedDecision("reject", interval, f"{said}: {figures}", wide)
    needed = _needed(log_ratios, levels, estimate, lower)
    return SpeedDecision("reject", interval, too_noisy_text(interval, pairs, needed), True, needed)


def sharpened(
    adopted: Interval,
    log_ratios: Sequence[float],
    *,
    look: int,
    levels: Sequence[float] | None = None,
) -> Interval:
    """The interval of a candidate adopted at an earlier look, updated with the pairs made since.

    The intervals of all looks, including those up to the adoption, hold simultaneously with
    probability 1 - :data:`ALPHA` (Jennison and Turnbull's repeated intervals), so their
    intersection holds too: it only gets narrower, and never includes "no gain" again. The estimate
    is shrunk towards 1 as at the adoption.

    Args:
        adopted: interval of the earlier looks.
        log_ratios, levels: as in :func:`decide`, with all pairs.
        look: index into :data:`LOOKS`.

    Raises:
        ValueError: as :func:`decide`.
    """
    centre, error, freedom, low, high = _look(log_ratios, levels, look, LOOKS, SHARP_TAIL)
    low, high = max(low, math.log(adopted.low)), min(high, math.log(adopted.high))
    if low >= high:  # the looks contradict each other: the machine changed in between
        return adopted
    return Interval(
        *map(math.exp, (min(max(_drawn(centre, error, freedom), low), high), low, high))
    )


def adopted_text(interval: Interval, pairs: int, better: str = "faster") -> str:
    """The reason given for an adoption."""
    return f"{better}: {_figures(interval, pairs)}"


def _figures(interval: Interval, pairs: int) -> str:
    return (
        f"{_times(interval.estimate)} ({_times(interval.low)} to {_times(interval.high)}, {pairs}"
        " pairs)"
    )


def around(log_gain: float, error: float) -> Interval:
    """exp(``log_gain``), two standard errors to each side: for orientation, it decides nothing."""
    return Interval(*(_exp(log_gain + step) for step in (0.0, -2 * error, 2 * error)))


def half_width(interval: Interval) -> float:
    """Half the interval's width, log units."""
    return math.log(interval.high / interval.low) / 2


def required_pairs(
    log_ratios: Sequence[float],
    half_width: float,
    alpha: float = ALPHA,
    *,
    levels: Sequence[float] | None = None,
) -> int | None:
    """Pairs needed for an interval of ± ``half_width`` (log units) if they scatter like
    ``log_ratios``; None if more than 1000.

    Raises:
        ValueError: fewer than two ratios, or a half width that is not positive.
    """
    _, error, freedom = robust_mean(log_ratios, levels)
    if freedom == 0 or half_width <= 0:
        raise ValueError("two ratios and a positive half width are needed")
    spread = error * math.sqrt(len(log_ratios))
    for n in range(2, REPORTED_PAIRS_LIMIT + 1):
        if t_quantile(1 - alpha / 2, n - 1) * spread / math.sqrt(n) <= half_width:
            return n
    return None


def too_noisy_text(interval: Interval, pairs: int, needed: int | None) -> str:
    """Tell the user that the interval stayed too wide, and what to do about it."""
    advice = f"about {needed} pairs needed" if needed else "more pairs will not help"
    return (
        f"too noisy to tell: {_times(interval.estimate)} after {pairs} pairs, could be"
        f" {_times(interval.low)} to {_times(interval.high)} ({advice}). Stop other work"
        " on this machine, or allow more time (budget.minutes)"
    )


def _look(
    log_ratios: Sequence[float],
    levels: Sequence[float] | None,
    look: int,
    looks: Sequence[int],
    lower: float,
) -> tuple[float, float, int, float, float]:
    """(centre, its standard error, degrees of freedom, lower end, upper end) at one look, in log
    units; see :func:`decide`. ``lower``: level of the lower end.
    """
    if not 0 <= look < len(looks):
        raise ValueError(f"look {look} is not one of the {len(looks)} planned")
    if not all(math.isfinite(r) for r in (*log_ratios, *(levels or ()))):
        raise ValueError("log ratios and levels must be finite")
    centre, error, freedom = robust_mean(log_ratios, levels)
    if not freedom:
        return centre, error, freedom, -math.inf, math.inf
    low = centre - critical_value(len(log_ratios), look, looks, lower) * error
    return (
        centre,
        error,
        freedom,
        low,
        centre + critical_value(len(log_ratios), look, looks, UPPER_TAIL, EARLY) * error,
    )


def _needed(
    log_ratios: Sequence[float], levels: Sequence[float] | None, estimate: float, lower: float
) -> int | None:
    """Pairs that would prove ``estimate`` if they scatter like these and no more are planned; None:
    more will not help.
    """
    pairs, error = len(log_ratios), robust_mean(log_ratios, levels)[1]
    for most in (count for count in LOOKS if count > pairs):
        looks = planned(most)
        reach = critical_value(most, len(looks) - 1, looks, lower) * math.sqrt(pairs / most)
        if reach * error <= estimate:
            return most
    needed = required_pairs(log_ratios, estimate, 2 * lower / len(LOOKS), levels=levels)
    return None if needed is None else max(needed, LOOKS[-1] + 1)


def _can_still_adopt(
    centre: float, error: float, pairs: int, looks: Sequence[int], lower: float, wanted: float
) -> bool:
    """Whether the last look could still adopt (see :func:`decide`)."""
    expected = error * math.sqrt(pairs / looks[-1])
    return centre + HOPE * error >= max(
        critical_value(looks[-1], len(looks) - 1, looks, lower) * expected, wanted
    )


def _drawn(centre: float, error: float, freedom: int) -> float:
    """``centre`` shrunk towards 0 according to its ``error`` (see :func:`decide`)."""
    if not freedom or not centre:
        return centre
    return centre * max(0.0, 1 - (freedom + 2) / max(freedom - 2, 1) * (error / centre) ** 2)


def _log(cost: float) -> float:
    if not (cost > 0 and math.isfinite(cost)):
        raise ValueError(f"a cost per sample must be positive and finite, not {cost}")
    return math.log(cost)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio >= 10 else f"{ratio:.3f}×"
