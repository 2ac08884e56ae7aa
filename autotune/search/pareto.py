"""Two objectives: which configurations form the Pareto front.

second │ ·        ·  beaten: another one is at least as good in both
       │    ·  ○     ○  not beaten
       │ ○
       └────────── first
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.job.configs import key_of
from autotune.objectives import WHOLE_TRAINING
from autotune.results import Observation, Point, Trial, TrialState
from autotune_spaces.base import Config, SearchSpace


class Figures:
    """Log ratios of trials in two objectives; negative is better.

    Args:
        objectives: the first is the one that a trial's ``log_ratio`` measures.
        planned_steps: optimizer steps of the whole training.
    """

    def __init__(
        self,
        objectives: tuple[str, str],
        space: SearchSpace,
        observation: Observation,
        planned_steps: int,
        trials: Sequence[Trial],
    ) -> None:
        self.objectives, self._space = objectives, space
        self._start_s = observation.startup_s
        self._steps_s = planned_steps * observation.anatomy.iteration_s
        self._trials = {key_of(t.config): t for t in trials if t.state == TrialState.COMPLETE}
        # the longest settling time seen for each: later ones come from a cache
        self._once_s: dict[str, float] = {}
        for trial in trials:
            key = self._slow_start(trial.config)
            if key:
                self._once_s[key] = max(self._once_s.get(key, 0.0), trial.settle_s)

    def of(self, trial: Trial) -> tuple[float, float] | None:
        """The trial's log ratios in both objectives; None if either is unknown."""
        if trial.origin == "process" and trial.second_log_ratio is not None:
            # its runs were compared with ``reference`` in both, start-up included: add its figures
            own = (trial.log_ratio or 0.0, trial.second_log_ratio)
            beside = self._trials.get(key_of(trial.reference))
            figures = self.of(beside) if beside is not None else None
            if beside is None or figures is None:
                return own
            theirs = (beside.log_ratio or 0.0, beside.second_log_ratio or 0.0)
            return figures[0] + own[0] - theirs[0], figures[1] + own[1] - theirs[1]
        first, second = (self._by(objective, trial) for objective in self.objectives)
        return None if first is None or second is None else (first, second)

    def _by(self, objective: str, trial: Trial) -> float | None:
        by_energy = self.objectives[0] == "energy"
        if objective == "energy":
            return trial.log_ratio if by_energy else trial.second_log_ratio
        time = trial.second_log_ratio if by_energy else trial.log_ratio
        if time is None or objective not in WHOLE_TRAINING:
            return time
        once_s = self._once_s.get(self._slow_start(trial.config), 0.0)
        whole_s = self._start_s + self._steps_s
        return math.log((self._start_s + once_s + self._steps_s * math.exp(time)) / whole_s)

    def _slow_start(self, config: Config) -> str:
        """Key of the part of ``config`` that has a start-up cost; "" if none has."""
        slow = {name: value for name, value in config.items() if self._space[name].start_up_cost}
        return key_of(slow) if slow else ""


def pareto(figures: Figures, trials: Sequence[Trial]) -> tuple[Point, ...]:
    """The unchanged job and every measured configuration, sorted by the first objective, best
    first."""
    known = [
        (trial, both)
        for trial in trials
        if trial.state == TrialState.COMPLETE and (both := figures.of(trial)) is not None
    ]
    points = [Point({}, 1.0, 1.0)] + [
        Point(dict(trial.config), math.exp(-a), math.exp(-b), trial.number)
        for trial, (a, b) in known
    ]
    points.sort(key=lambda p: (-p.first, -p.second))
    best, found = 0.0, []
    for point in points:  # all earlier points are at least as good in the first objective
        found.append(replace(point, beaten=point.second <= best))
        best = max(best, point.second)
    return tuple(found)
