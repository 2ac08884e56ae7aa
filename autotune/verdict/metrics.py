"""A metric of the user's own, checked like the loss: paired by seed, unchanged, changed, or not yet
clear.

A job reports few values of a metric (one an epoch, say), so there are one or two bins instead of
six and no probe:

    seed 1   0.61  0.74  0.80  0.83     baseline          one bin below 8 values, else two halves
    seed 1   0.60  0.75  0.80  0.84     candidate         values are matched by their order

The margin is Δ = max(τ · |metric|, min(κ · seed SD, share of how far the metric moves)), as for the
loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from autotune.results import MetricVerdict
from autotune.verdict.equivalence import Differences, judge
from autotune.verdict.runs import step_bins

# values a run; fewer give halves of one or two values, which say nothing of a course
TWO_BINS_FROM = 8
# of the metric itself: the seeds' own spread may widen the margin up to here where it does not move
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
        looks: numbers of pairs at which a decision is tried; fewer pairs than the first decide
            nothing.

    Returns:
        "unchanged", "changed", "undecided" (more pairs may tell), or "not-judged" with the reason.
    """
    seeds = sorted(baselines.keys() & candidates.keys())
    count = min((min(len(baselines[s]), len(candidates[s])) for s in seeds), default=0)
    why_not = _why_not(baselines, candidates, seeds, count)
    if why_not:
        return MetricVerdict(name, "not-judged", why_not)
    broken = next((s for s in seeds if not all(map(math.isfinite, candidates[s][:count]))), None)
    if broken is not None:
        return MetricVerdict(
            name, "changed", f"it is not a finite number (seed {broken}), the baseline's is"
        )
    if all(list(baselines[s][:count]) == list(candidates[s][:count]) for s in seeds):
        return MetricVerdict(
            name, "unchanged", f"the same to the last bit, {count} values a run", 0.0, 0.0
        )
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


def _why_not(
    baselines: Mapping[int, Sequence[float]],
    candidates: Mapping[int, Sequence[float]],
    seeds: Sequence[int],
    count: int,
) -> str:
    if not any(baselines.values()):
        return "the job did not report it in the steps compared: raise convergence.steps"
    if count == 0:
        return "not every run reported it in the steps compared: raise convergence.steps"
    values = [x for s in seeds for x in baselines[s][:count]]
    if not all(map(math.isfinite, values)):
        return "the job's own value is not a finite number"
    if min(values) == max(values):
        return (
            f"it stays at {values[0]:.4g} in the job itself, so it cannot show whether anything"
            " changed"
        )
    return ""


def _bins(values: Sequence[float], count: int, bins: int) -> list[float]:
    return [fmean(values[i] for i in stretch) for stretch in step_bins(count, bins)]


def _margins(runs: Sequence[Sequence[float]], bins: int, tolerance: float) -> list[float]:
    """One a bin, in the metric's unit; never zero."""
    count = len(runs[0])
    course = [fmean(column) for column in zip(*runs, strict=False)]
    level = max(abs(x) for x in course)
    moves = max(course) - min(course) if count > 1 else level
    floor = 1e-3 * max(moves, level)  # of a metric near zero there is no share to take
    margins = []
    for column in zip(*(_bins(run, count, bins) for run in runs), strict=True):
        spread = min(stdev(column) if len(column) > 1 else 0.0, SPREAD_SHARE * (moves or level))
        margins.append(max(tolerance * abs(fmean(column)), spread, floor))
    return margins
