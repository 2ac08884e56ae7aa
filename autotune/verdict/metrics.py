"""Check a user-defined metric like the loss: paired by seed; unchanged, changed or undecided.

A job reports few values of a metric (one per epoch, say), so there are one or two bins instead of
six, and no probe:

    seed 1   0.61  0.74  0.80  0.83     baseline          one bin below 8 values, else two halves
    seed 1   0.60  0.75  0.80  0.84     candidate         values are matched by their order (with another batch size: by samples)

The margin is Δ = max(τ · |metric|, min(κ · seed SD, share of how far the metric moves)), as for the
loss.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from autotune.results import MetricVerdict
from autotune.verdict.equivalence import Differences, judge
from autotune.verdict.runs import step_bins

# values per run; with fewer, a half has too few values to show a trend
TWO_BINS_FROM = 8
# share of the metric's movement (or of its level if it does not move) up to which the spread
# between seeds may widen the margin
SPREAD_SHARE = 0.10


def compare_metric(
    name: str,
    baselines: Mapping[int, Sequence[float]],
    candidates: Mapping[int, Sequence[float]],
    *,
    tolerance: float,
    looks: Sequence[int],
) -> MetricVerdict:
    """The verdict on one metric.

    Args:
        baselines, candidates: seed -> values in the order the job reported them.
        tolerance: share of the metric that may differ.
        looks: numbers of pairs at which a decision is tried; with fewer than the first, none is.

    Returns:
        "unchanged", "changed", "undecided" (more pairs may help), or "not-judged" with the reason.
    """
    seeds = sorted(baselines.keys() & candidates.keys())
    count = min((min(len(baselines[s]), len(candidates[s])) for s in seeds), default=0)
    why_not = _why_not(baselines, seeds, count)
    if why_not:
        return MetricVerdict(name, "not-judged", why_not)
    broken = next((s for s in seeds if not all(map(math.isfinite, candidates[s][:count]))), None)
    if broken is not None:
        return MetricVerdict(
            name,
            "changed",
            f"it is NaN or infinite (seed {broken}), while the baseline's is finite",
        )
    if all(list(baselines[s][:count]) == list(candidates[s][:count]) for s in seeds):
        return MetricVerdict(name, "unchanged", f"bit-identical, {count} values per run", 0.0, 0.0)
    bins = 2 if count >= TWO_BINS_FROM else 1
    margins = _margins([v[:count] for v in baselines.values() if len(v) >= count], bins, tolerance)
    rows = [
        [
            (b - a) / m
            for a, b, m in zip(
                _bins(baselines[s], count, bins),
                _bins(candidates[s], count, bins),
                margins,
                strict=True,
            )
        ]
        for s in seeds
    ]
    found = judge(Differences(rows), looks=looks)
    margin, difference = margins[found.bin], found.mean * margins[found.bin]
    figures = (
        f"largest difference {difference:+.3g}, margin ±{margin:.3g}, {len(seeds)} pairs of {count}"
        " values"
    )
    return MetricVerdict(name, found.state, figures, margin, difference)


def at_same_samples(
    values: Sequence[float],
    at: Sequence[float],
    others: Sequence[float],
    others_at: Sequence[float],
) -> tuple[list[float], list[float]]:
    """``values`` and ``others``, of runs with different batch sizes, where both are known.

    ``others`` are interpolated linearly at the samples where ``values`` were reported. ([], []): a
    side has no positions (its metric was printed, say), or they share no samples.
    """
    if not values or not others or len(at) != len(values) or len(others_at) != len(others):
        return [], []
    shared = [(n, x) for n, x in zip(at, values) if others_at[0] <= n <= others_at[-1]]
    return [x for _, x in shared], [_interpolated(others_at, others, n) for n, _ in shared]


def _interpolated(at: Sequence[float], values: Sequence[float], position: float) -> float:
    after = min(max(bisect_left(at, position), 1), len(at) - 1)
    if len(at) < 2 or at[after] == at[after - 1]:
        return values[min(after, len(values) - 1)]
    share = (position - at[after - 1]) / (at[after] - at[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


def _why_not(baselines: Mapping[int, Sequence[float]], seeds: Sequence[int], count: int) -> str:
    if not any(baselines.values()):
        return "the job did not report it in the compared steps: raise convergence.steps"
    if count == 0:
        return "not every run reported it in the compared steps: raise convergence.steps"
    values = [x for s in seeds for x in baselines[s][:count]]
    if not all(map(math.isfinite, values)):
        return "the job's own value is NaN or infinite"
    if min(values) == max(values):
        return (
            f"it stays at {values[0]:.4g} in the unchanged job, so it cannot show whether"
            " anything changed"
        )
    return ""


def _bins(values: Sequence[float], count: int, bins: int) -> list[float]:
    return [fmean(values[i] for i in stretch) for stretch in step_bins(count, bins)]


def _margins(runs: Sequence[Sequence[float]], bins: int, tolerance: float) -> list[float]:
    """One margin per bin, in the metric's unit; never zero."""
    count = len(runs[0])
    course = [fmean(column) for column in zip(*runs, strict=False)]
    level = max(abs(x) for x in course)
    moves = max(course) - min(course) if count > 1 else level
    floor = 1e-3 * max(moves, level)  # for a metric near zero, where a share of it vanishes
    margins = []
    for column in zip(*(_bins(run, count, bins) for run in runs), strict=True):
        spread = min(stdev(column) if len(column) > 1 else 0.0, SPREAD_SHARE * (moves or level))
        margins.append(max(tolerance * abs(fmean(column)), spread, floor))
    return margins
