"""Predict how long a whole training takes from a run of its first steps.

    start │ first steps, slower │ every sample at its steady cost │ evaluation, saving

Validated on programs that ran to completion: benchmarks/time_to_train.md.
"""

from __future__ import annotations

import math

from autotune.verdict.timing import mean_samples
from autotune_trials.protocol.messages import Window


def training_s(
    window: Window, *, run_s: float, cost: float, samples: float, once_s: float
) -> float:
    """Seconds from the start of the process to its end.

    Args:
        window: a run of the job, recorded from its first iteration.
        run_s: wall time of that run, including start and end.
        cost: seconds per sample: training, epoch ends, evaluation and saving.
        samples: number of samples of the whole training.
        once_s: seconds that the first iterations take longer than later ones.
    """
    start_s = max(run_s - math.fsum(window.times_s) - window.away_s, 0.0)
    return start_s + once_s + cost * samples


def asides(a: Window, b: Window) -> tuple[float, float] | None:
    """Seconds per sample that each of two runs spends on evaluation and saving; None if neither run
    reached any.

    If a run ends an epoch, they count once per epoch, else as often as in its window: too high an
    estimate understates a gain, too low a one would overstate it. A run that reached none is
    assumed to take as long as the other.
    """
    for rate in (_an_epoch, _a_window):
        x, y = rate(a), rate(b)
        if x is not None:
            return x, (x if y is None else y)
        if y is not None:
            return y, y
    return None


def _an_epoch(window: Window) -> float | None:
    if not (window.turnovers_s and window.epoch_iterations):
        return None
    return _aside_s(window) / (
        len(window.turnovers_s) * window.epoch_iterations * mean_samples(window)
    )


def _a_window(window: Window) -> float | None:
    return _aside_s(window) / math.fsum(window.samples) if window.interruptions else None


def _aside_s(window: Window) -> float:
    return max(window.away_s - math.fsum(window.turnovers_s), 0.0)
