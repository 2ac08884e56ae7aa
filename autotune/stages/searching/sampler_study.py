"""SEARCH with Optuna's samplers: they propose one configuration after another, the model judges."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.results import Observation, Trial
from autotune.search.model import OUT_OF_TIME, Series
from autotune.search.proposer import Proposer
from autotune.search.seeds import seeds
from autotune.search.stopping import PLATEAU_TRIALS, plateau
from autotune.stages.budget import NO_TRIALS, tried_enough
from autotune.stages.context import RunContext
from autotune.stages.searching.configurations import Configuration
from autotune.stages.searching.model_study import ModelStudy
from autotune_spaces.base import Value


class SamplerStudy(ModelStudy):
    """A study whose series are a sampler's proposals, each beside a block of the unchanged job."""

    def __init__(self, context: RunContext, observation: Observation, names: Sequence[str]) -> None:
        super().__init__(context, observation, names)
        self._proposer = Proposer(
            context.run_dir / "optuna.log",
            self.space,
            self._domains,
            observation.defaults,
            context.seed,
            context.spec.search,
        )
        faults = observation.anatomy.minor_faults
        for config in seeds(observation.bottleneck, self._domains, observation.defaults, faults):
            self._proposer.enqueue(config, "seed")
        self._told: list[Trial] = []  # with their figures then

    def restore(self) -> None:
        super().restore()
        self._told = self.trials()
        self._proposer.restore(self._told)

    def _next_series(self) -> Series | None:
        tried = len(self._configurations) + len(self._busy)
        if tried_enough(self.context, self.observation, tried):
            self.stopped = NO_TRIALS
        elif self._left_s() <= 0:
            self.stopped = OUT_OF_TIME
        elif plateau(self._told):
            self.stopped = f"{PLATEAU_TRIALS} proposals in a row found nothing better"
        elif proposed := self._proposer.next():
            origin, config = proposed
            # it comes first: what its first block takes to settle is its start-up cost
            return Series((config, config, {}), origin)
        else:
            self.stopped = "no configuration is left to try"
        return None

    def _announce(self, new: Sequence[Configuration]) -> None:
        super()._announce(new)
        for trial in map(self._trial, new):
            self._told.append(trial)
            self._proposer.tell(trial)

    def _exclude(self, name: str, value: Value) -> None:
        super()._exclude(name, value)
        self._proposer.exclude(name, value)
