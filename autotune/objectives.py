"""What a job is tuned for.

    throughput     time a sample
    time_to_train  time of the whole planned training: start-up, compiling and evaluation included
    cost           the same, by what the machine costs an hour
    energy         joules a sample, by the machine's own counters (autotune_trials.measure.energy)

Of two, the first decides; both figures of every configuration tell which of them are worth having
(search/pareto.py).
"""

from __future__ import annotations

from typing import Literal

Objective = Literal["throughput", "time_to_train", "cost", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("throughput", "time_to_train", "cost", "energy")
WHOLE_TRAINING = ("time_to_train", "cost")
MOST = 2  # objectives of a job
BETTER = {
    "throughput": "faster",
    "time_to_train": "faster",
    "cost": "cheaper",
    "energy": "more energy-efficient",
}
# what there is 1.5x of, where a factor over the job as it is says so
FACTOR = {
    "throughput": "the samples a second",
    "time_to_train": "the speed from start to end",
    "cost": "the training for the money",
    "energy": "the samples a joule",
}


def metric(objective: str) -> str:
    """What the factor of a trial is called in MLflow."""
    return f"times/{objective}"
