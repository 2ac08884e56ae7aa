"""Is B faster or slower than A, or the same? Looked at more than once, while pairs are being made.

                 0.98        1.00        1.02
      same         ├────[──────×──]────────┤        the whole interval lies within the margin
      faster       ├───────────┼──────[────┼──×──]  above 1, at a level of its own
      slower   [─×─┼──]────────┼───────────┤        below 1
      open         ├──[────────┼────×──────┼──]     go on; after the last look: undecided

"Same" is a claim of equivalence (two one-sided tests at the level of the interval), never the
absence of a proof. A direction has a smaller level, because a false alarm costs a person's time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.results import Interval
from autotune.verdict.sequential import EARLY, critical_value, robust_mean

LOOKS = (5, 7, 9, 11, 14, 17, 21, 26, 32, 40)  # pairs
DIRECTION_TAIL = 0.004  # that equal sides are ever called faster; and as much for slower
INTERVAL_TAIL = 0.025  # that the reported interval misses, at each end, over all looks
MARGIN = 0.02  # within it two sides are the same for any practical purpose


@dataclass(frozen=True)
class Difference:
    """``state``: "faster", "slower", "same" or "open", of B over A.

    ``interval``: of the speed-up, cost of A / cost of B; 95 %, over all looks together.
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
    looks: Sequence[int] = LOOKS,
) -> Difference:
    """What the pairs made until ``look`` show.

    Args:
        log_ratios: log(cost of A / cost of B), one per pair of runs side by side.
        look: counted from 0.
        levels: how slow the machine was during each pair, log units; None: not known.
        margin: share by which the speeds of equal sides may differ.
        looks: pairs at each look.

    Raises:
        ValueError: fewer than two ratios, one that is not finite, or ``look`` out of range.
    """
    if not 0 <= look < len(looks):
        raise ValueError(f"look {look} is not one of the {len(looks)} planned")
    if len(log_ratios) < 2 or not all(map(math.isfinite, log_ratios)):
        raise ValueError("two finite ratios or more are needed")
    centre, error, _ = robust_mean(log_ratios, levels)
    reach = critical_value(len(log_ratios), look, looks, INTERVAL_TAIL, EARLY) * error
    sure = critical_value(len(log_ratios), look, looks, DIRECTION_TAIL, EARLY) * error
    low, high, wanted = centre - reach, centre + reach, math.log1p(margin)
    interval = Interval(math.exp(centre), math.exp(low), math.exp(high))
    if -wanted < low and high < wanted:
        state = "same"
    elif centre - sure > 0:
        state = "faster"
    elif centre + sure < 0:
        state = "slower"
    else:
        state = "open"
    return Difference(state, interval, len(log_ratios))
