"""What past runs say about each value of each knob.

    one run     its configurations, split into effects of single values (ridge regression)
    all of them the mean of their effects, each weighted by its error and by its job's likeness

The result is a mean only. It moves the prior of the search but not its width, so a few blocks of
the job itself outweigh it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autotune.history.records import PastRun, revealed
from autotune_spaces.base import Value

# (knob, value) -> effect on log cost, its standard error
Effects = dict[tuple[str, Value], tuple[float, float]]
MAIN_SD = 0.3  # of a value's effect in one run, before the fit
# of a value's effect in this job, if nothing is known: the history is weighed against it
PRIOR_SD = 0.15
SAME_JOB_SD = 0.02  # of the difference of an effect between two runs of one job
UNLIKE_SD = 0.12  # and between two jobs of likeness 1/2
LARGEST = 1.5  # log cost: recorded ratios are clipped to it
SOURCES = ("live", "process", "confirmed")


def effects_of(run: PastRun, domains: Mapping[str, Sequence[Value]]) -> Effects:
    """Effects, in one run, of the values that this search has, too."""
    import numpy as np

    rows = []
    for measured in run.measured:
        config = revealed(measured.config, domains)
        if config and measured.source in SOURCES and measured.log_ratio is not None:
            rows.append((config, measured.log_ratio, measured.error or 0.0))
    items = sorted({item for config, _, _ in rows for item in config.items()}, key=repr)
    if not items:
        return {}
    place = {item: i for i, item in enumerate(items)}
    x = np.zeros((len(rows), len(items)))
    for row, (config, _, _) in enumerate(rows):
        x[row, [place[item] for item in config.items()]] = 1.0
    y = np.clip([ratio for _, ratio, _ in rows], -LARGEST, LARGEST)
    weight = 1 / (np.array([error for _, _, error in rows]) ** 2 + SAME_JOB_SD**2)
    precision = (x * weight[:, None]).T @ x + np.eye(len(items)) / MAIN_SD**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (x.T @ (weight * y))
    return {item: (float(mean[i]), float(covariance[i, i]) ** 0.5) for item, i in place.items()}


def expected_effects(found: Iterable[tuple[float, Effects]]) -> dict[tuple[str, Value], float]:
    """Expected effect of each value in this job.

    Args:
        found: likeness and effects of each past run.
    """
    sums: dict[tuple[str, Value], tuple[float, float]] = {}
    for likeness, effects in found:
        between = SAME_JOB_SD**2 + UNLIKE_SD**2 * (1 / likeness - 1)
        for item, (mean, error) in effects.items():
            precision = 1 / (error**2 + between)
            total, weighted = sums.get(item, (1 / PRIOR_SD**2, 0.0))
            sums[item] = (total + precision, weighted + precision * mean)
    return {item: weighted / total for item, (total, weighted) in sums.items()}
