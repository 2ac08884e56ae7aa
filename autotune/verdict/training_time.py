"""Predict how long a whole training takes from a run of its first steps.

    start │ first steps, slower │ every sample at its steady cost │ evaluation, saving

Validated on programs that ran to completion: benchmarks/time_to_train.md.
"""

from __future__ import annotations

import math

from autotune.verdict.iterations import epoch_iterations, mean_samples
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


def evaluation_costs(a: Window, b: Window) -> tuple[float, float] | None:
    """Seconds per sample that each of two runs spends on evaluation and saving; None if neither run
    reached any.

    If they come at the ends of epochs, they count once per epoch, else as often as in both windows
    together: the windows may be of different lengths, and both trainings evaluate equally often.
    A run that reached none is assumed to take as long as the other.
    """
    x, y = _an_epoch(a), _an_epoch(b)
    between_epochs = all(w.interruptions in (0, len(set(w.turnovers_at))) for w in (a, b))
    if not between_epochs or (x is None and y is None):
        count = a.interruptions + b.interruptions
        rate = count / max(math.fsum(a.samples) + math.fsum(b.samples), 1.0)
        x, y = (
            rate * _evaluation_s(w) / w.interruptions if w.interruptions else None for w in (a, b)
        )
    if x is None:
        return None if y is None else (y, y)
    return x, (x if y is None else y)


def _an_epoch(window: Window) -> float | None:
    epoch = epoch_iterations(window)
    if not (window.turnovers_s and epoch):
        return None
    return _evaluation_s(window) / (len(window.turnovers_s) * epoch * mean_samples(window))


def _evaluation_s(window: Window) -> float:
    return max(window.away_s - math.fsum(window.turnovers_s), 0.0)
