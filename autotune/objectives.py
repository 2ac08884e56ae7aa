"""What a job is tuned for.

    throughput     time per sample
    time_to_train  time of the whole planned training, including start-up, compiling and evaluation
    cost           the same, times what the machine costs per hour
    energy         joules per sample, by the machine's own counters (autotune_trials.measure.energy)

Of two objectives, the first decides; both figures of every configuration show which configurations
are worth having (search/pareto.py).
"""

from __future__ import annotations

from typing import Literal, get_args

Objective = Literal["throughput", "time_to_train", "cost", "energy"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
WHOLE_TRAINING = ("time_to_train", "cost")
MOST = 2  # objectives per job
BETTER = {
    "throughput": "faster",
    "time_to_train": "faster",
    "cost": "cheaper",
    "energy": "more energy-efficient",
}
# what that is called, in a few words
GAIN = {
    "throughput": "speed-up",
    "time_to_train": "speed-up",
    "cost": "cost saving",
    "energy": "energy saving",
}
# what a factor such as 1.5x over the unchanged job is a factor of
FACTOR = {
    "throughput": "the samples per second",
    "time_to_train": "the speed from start to end",
    "cost": "the training per unit of cost",
    "energy": "the samples per joule",
}


def metric(objective: str) -> str:
    """The name in MLflow of a trial's factor."""
    return f"times/{objective}"
