"""SEARCH with Optuna's samplers: they propose one configuration after another, the model judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.job.configs import key_of
from autotune.results import Observation, Trial
from autotune.search.model import OUT_OF_TIME, Series
from autotune.search.proposer import Proposer
from autotune.search.sampler_stopping import PLATEAU_TRIALS, plateau
from autotune.search.seeds import seeds
from autotune.stages.budget import NO_TRIALS
from autotune.stages.context import RunContext
from autotune.stages.searching.configurations import NOT_MEASURED, Configuration
from autotune.stages.searching.model_study import ModelStudy
from autotune_spaces.base import Config, Value

REPEATS = 2  # of a proposal that was not measured


class SamplerStudy(ModelStudy):
    """A study whose series are a sampler's proposals, each beside a block of the unchanged job."""

    def __init__(self, context: RunContext, observation: Observation, names: Sequence[str]) -> None:
        super().__init__(context, observation, names)
        domains, own = self._models.domains, observation.defaults
        self._proposer = Proposer(
            context.run_dir / "optuna.log",
            self.space,
            domains,
            own,
            context.seed,
            context.spec.search,
        )
        faults = observation.anatomy.minor_faults
        for config in seeds(observation.bottleneck, domains, own, faults):
            self._proposer.enqueue(config)
        self._told: list[Trial] = []  # with their figures then
        self._waiting: list[Configuration] = []  # proposals without a figure, to be repeated
        self._repeats: Counter[str] = Counter()

    def restore(self) -> None:
        super().restore()
        self._waiting = [it for it in self._configurations if self._open(it)]
        self._told = [self._trial(it) for it in self._configurations if not self._open(it)]
        self._proposer.restore(self._told)

    def _why_over(self) -> str:
        return "" if self._disturbed() and self._limits.left_s() > 0 else super()._why_over()

    def _next_series(self) -> Series | None:
        if self._limits.left_s() > 0 and (it := self._disturbed()):
            self._repeats[key_of(it.config)] += 1
            return _beside_the_job(it.config, it.first.purpose)
        tried = len(self._configurations) + len(self._busy)
        if self._limits.tried_enough(tried):
            self.stopped = NO_TRIALS
        elif self._limits.left_s() <= 0:
            self.stopped = OUT_OF_TIME
        elif plateau(self._told):
            self.stopped = f"{PLATEAU_TRIALS} proposals in a row found nothing better"
        elif proposed := self._proposer.next():
            origin, config = proposed
            return _beside_the_job(config, origin)
        else:
            self.stopped = "no configuration is left to try"
        return None

    def _disturbed(self) -> Configuration | None:
        """A proposal to measure once more, since other load disturbed it or workers were killed."""
        busy = self._measured_now()
        return next((it for it in self._waiting if key_of(it.config) not in busy), None)

    def _open(self, it: Configuration) -> bool:
        """Whether a proposal without a figure may still get one."""
        key = key_of(it.config)
        repeated = self._repeats[key] < REPEATS or key in self._measured_now()
        return it.reason == NOT_MEASURED and repeated

    def _measured_now(self) -> set[str]:
        return {key_of(config) for series in self._busy for config in series.blocks}

    def _announce(self, new: Sequence[Configuration]) -> None:
        candidates = [*self._waiting, *new]
        self._waiting = [it for it in candidates if self._open(it)]
        finished = [it for it in candidates if it not in self._waiting]
        super()._announce(finished)
        for trial in map(self._trial, finished):
            self._told.append(trial)
            self._proposer.tell(trial)

    def _exclude(self, name: str, value: Value) -> None:
        super()._exclude(name, value)
        self._proposer.exclude(name, value)


def _beside_the_job(config: Config, purpose: str) -> Series:
    # it comes first: what its first block takes to settle is its start-up cost
    return Series((config, config, {}), purpose)
