"""Is B faster or slower than A, or the same? Checked at several looks while pairs are being made.

                 0.98        1.00        1.02
      same         ├────[──────×──]────────┤        the whole interval lies within the margin
      faster       ├───────────┼──────[────┼──×──]  above 1, at its own level
      slower   [─×─┼──]────────┼───────────┤        below 1
      open         ├──[────────┼────×──────┼──]     continue; after the last look: undecided

"Same" is a claim of equivalence (two one-sided tests at the level of the interval), never a mere
lack of evidence. A direction has a smaller level, because a false alarm costs somebody's time.
Slow pairs count less in the estimate, and they may be B's own doing: the plain mean of all pairs has
to agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.results import Interval
from autotune.verdict.sequential import EARLY, critical_value, robust_mean
from autotune.verdict.speedup import BACKED

LOOKS = (5, 7, 9, 11, 14, 17, 21, 26, 32, 40)  # in pairs
DIRECTION_TAIL = 0.004  # probability that equal sides are ever called faster; the same for slower
INTERVAL_TAIL = 0.025  # probability that the reported interval misses, per end, over all looks
MARGIN = 0.02  # two sides within it are the same for all practical purposes


@dataclass(frozen=True)
class Difference:
    """``state``: "faster", "slower", "same" or "open", for B compared with A.

    ``interval``: of the speed-up, cost of A / cost of B; 95% over all looks together.
    """

    state: str
    interval: Interval
    pairs: int


def difference(
    log_ratios: Sequence[float],
    *,
    look: int,
    levels: Sequence[float] | None = None,
    margin: float = MARGIN,
) -> Difference:
    """The result of all pairs made until ``look``.

    Args:
        log_ratios: log(cost of A / cost of B), one per pair of runs side by side.
        look: index into :data:`LOOKS`.
        levels: how slow the machine was during each pair, log units; None: unknown.
        margin: share by which the speeds of equal sides may differ.

    Raises:
        ValueError: fewer than two ratios, a ratio that is not finite, or ``look`` out of range.
    """
    if not 0 <= look < len(LOOKS):
        raise ValueError(f"look {look} is not one of the {len(LOOKS)} planned")
    if len(log_ratios) < 2 or not all(map(math.isfinite, log_ratios)):
        raise ValueError("two finite ratios or more are needed")
    centre, error, _ = robust_mean(log_ratios, levels)
    reach = critical_value(len(log_ratios), look, LOOKS, INTERVAL_TAIL, EARLY) * error
    sure = critical_value(len(log_ratios), look, LOOKS, DIRECTION_TAIL, EARLY) * error
    low, high, wanted = centre - reach, centre + reach, math.log1p(margin)
    interval = Interval(math.exp(centre), math.exp(low), math.exp(high))
    plain = fmean(log_ratios)
    if -wanted < low and high < wanted and abs(plain) < wanted:
        state = "same"
    elif centre - sure > 0 and plain >= BACKED * centre:
        state = "faster"
    elif centre + sure < 0 and plain <= BACKED * centre:
        state = "slower"
    else:
        state = "open"
    return Difference(state, interval, len(log_ratios))
