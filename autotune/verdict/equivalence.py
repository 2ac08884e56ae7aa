"""Sequential equivalence test of paired differences: inside the margin in all bins, outside in any,
or undecided.

          −Δ         0         +Δ
           ├────[────×────]────┤             inside in all bins  ──▶ unchanged
           ├─────────┼─────────┤  [──×──]    outside in any bin  ──▶ changed
           ├─────────┼────[────┼───×──]      else                ──▶ undecided: more pairs may help

"Unchanged" must hold in every bin, so its error does not add up over bins (an intersection-union
test, Berger 1982), and each bin gets the usual level of equivalence testing (TOST, Schuirmann
1987). "Changed" can be claimed from any bin at any look, so its error is split over bins and looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance

from autotune.verdict.sequential import t_quantile

UNCHANGED_ALPHA = 0.05  # one-sided, on each side: the 90% interval of a TOST
CHANGED_ALPHA = 0.05  # two-sided, over all bins and looks
# degrees of freedom given to the variance pooled over bins, in addition to a bin's own
VARIANCE_WEIGHT = 4


@dataclass(frozen=True)
class Differences:
    """Candidate minus baseline in units of the margin: ``rows[pair][bin]``.

    ``floors``: least variance of each bin's difference, [] for none, so that two pairs that agree
    by chance do not hide scatter known from elsewhere.
    """

    rows: Sequence[Sequence[float]]
    floors: Sequence[float] = field(default_factory=list)


@dataclass(frozen=True)
class Judgement:
    state: str  # "unchanged", "changed", "undecided"
    bin: int  # the deciding bin, or the one closest to deciding
    mean: float  # its mean difference, in margins


def judge(differences: Differences, *, looks: Sequence[int]) -> Judgement:
    """The judgement so far; always "undecided" with fewer pairs than ``looks[0]``."""
    rows = differences.rows
    bins, n = len(rows[0]), len(rows)
    means = [fmean(column) for column in zip(*rows, strict=True)]
    worst = max(range(bins), key=lambda i: abs(means[i]))
    if n < max(looks[0], 2):
        return Judgement("undecided", worst, means[worst])
    errors, freedom = standard_errors(rows, differences.floors or [0.0] * bins)
    inside = t_quantile(1 - UNCHANGED_ALPHA, freedom)
    outside = t_quantile(1 - CHANGED_ALPHA / 2 / (bins * len(looks)), freedom)
    out = [i for i in range(bins) if abs(means[i]) - outside * errors[i] > 1]
    if out:
        furthest = max(out, key=lambda i: abs(means[i]))
        return Judgement("changed", furthest, means[furthest])
    if all(abs(m) + inside * e <= 1 for m, e in zip(means, errors, strict=True)):
        return Judgement("unchanged", worst, means[worst])
    return Judgement("undecided", worst, means[worst])


def standard_errors(
    rows: Sequence[Sequence[float]], floors: Sequence[float]
) -> tuple[list[float], int]:
    """(standard error of each bin's mean, degrees of freedom); variances are shrunk towards the
    pooled one.
    """
    n = len(rows)
    own = [variance(column) for column in zip(*rows, strict=True)]
    pooled = fmean(own)
    shrunk = [
        max(((n - 1) * v + VARIANCE_WEIGHT * pooled) / (n - 1 + VARIANCE_WEIGHT), floor)
        for v, floor in zip(own, floors, strict=True)
    ]
    return [math.sqrt(v / n) for v in shrunk], n - 1 + VARIANCE_WEIGHT
