"""How long a whole training takes, told by a run of its first steps.

    start │ first steps, slower │ every sample at its steady cost │ between epochs: evaluation, saving

Tried on programs that ran to their ends: benchmarks/time_to_train.md.
"""

from __future__ import annotations

import math

from autotune.verdict.timing import mean_samples
from autotune_trials.protocol.messages import Window

REGULAR = 2  # interruptions of a window that make them part of the job's rhythm


def training_s(
    window: Window, *, run_s: float, cost: float, samples: float, once_s: float
) -> float:
    """Seconds from the start of the process to its end.

    Args:
        window: a run of the job, from its first iteration on.
        run_s: wall time of that run, start and end included.
        cost: seconds a sample, epoch ends included.
        samples: of the whole training.
        once_s: what the first iterations take longer than later ones.
    """
    start_s = max(run_s - math.fsum(window.times_s) - window.away_s, 0.0)
    return start_s + once_s + cost * samples + _between_s(window, samples)


def _between_s(window: Window, samples: float) -> float:
    """What the job does beside training, evaluation and saving: at every epoch's end where the
    window holds one, else at the pace of the window, where it came more than once.
    """
    aside_s = max(window.away_s - math.fsum(window.turnovers_s), 0.0)
    if window.turnovers_s and window.epoch_iterations:
        epochs = samples / (window.epoch_iterations * mean_samples(window))
        return aside_s / len(window.turnovers_s) * epochs
    if window.interruptions >= REGULAR:
        return aside_s * samples / math.fsum(window.samples)
    return aside_s
