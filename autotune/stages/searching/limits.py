"""When the live search ends, and when the loader's knobs are no longer searched alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.job.configs import key_of
from autotune.results import Observation, Trial
from autotune.search.focus import AT_CEILING, LOADER_KINDS, at_ceiling
from autotune.search.model import Series
from autotune.stages.budget import NO_TRIALS, search_began_s, search_ends_s, tried_enough
from autotune.stages.context import RunContext
from autotune.stages.searching.configurations import Configurations
from autotune.stages.searching.models import Models
from autotune.verdict.bottleneck import shares
from autotune.verdict.timing import restarts_with

MOST_BLOCKS = 5000  # per search: ends one on a machine too noisy to converge
FIRST_SHARE = 0.5  # largest share of the search's time for the loader's knobs alone
MOSTLY = 0.5  # share of time lost to the loader above which its knobs are searched alone


class SearchLimits:
    """The time, trials and blocks of a search, judged by what it has found so far."""

    def __init__(
        self,
        context: RunContext,
        observation: Observation,
        models: Models,
        configurations: Configurations,
    ) -> None:
        self._context, self._observation = context, observation
        self._models, self._configurations = models, configurations
        self._began_s = search_began_s(context)

    def why_over(self) -> str:
        """Why nothing more may be measured; "": it may."""
        if self.tried_enough(len(self._configurations)):
            return NO_TRIALS
        if len(self._models.first.rows) > MOST_BLOCKS:
            return f"{MOST_BLOCKS:,} blocks were measured"
        if not self._models.loader_only:
            return ""
        if at_ceiling(*self._models.leader_gain(), self._observation.ceiling):
            return f"at {AT_CEILING:.0%} of what an infinitely fast loader would give"
        if self.elapsed_share() > FIRST_SHARE:
            return f"{FIRST_SHARE:.0%} of the search's time is used up"
        return ""

    def tried_enough(self, trials: int) -> bool:
        return tried_enough(self._context, self._observation, trials)

    def left_s(self) -> float:
        """Seconds left of the search's time."""
        ends_s = search_ends_s(
            self._context,
            self._observation,
            self._began_s,
            self._models.sure_gain(),
            self._models.by_time.answer().config,
        )
        return ends_s - self._context.journal.elapsed_s

    def elapsed_share(self) -> float:
        """Share of the search's time that has passed."""
        passed_s = self._context.journal.elapsed_s - self._began_s
        return passed_s / max(passed_s + self.left_s(), 1.0)

    def within_trials(self, series: Series, busy: Iterable[Series]) -> Series | None:
        """``series`` without configurations beyond ``budget.trials``; None if nothing is left.

        ``busy``: taken and not measured yet.
        """
        if self._context.spec.budget.trials is None:
            return series
        taken = (key_of(config) for each in busy for config in each.blocks)
        known, blocks = {*self._configurations.keys, *taken, key_of({})}, []
        for config in series.blocks:
            if key_of(config) in known or not self.tried_enough(len(known) - 1):
                known.add(key_of(config))
                blocks.append(config)
        return replace(series, blocks=tuple(blocks)) if blocks else None


def waiting_share(observation: Observation) -> float:
    """Share of the time, 0 to 1, that the job would save if batches and epoch ends cost nothing."""
    if observation.bottleneck not in LOADER_KINDS:
        return 0.0
    return (
        observation.anatomy.reader_ratio
        if observation.ceiling is None
        else 1 - 1 / max(observation.ceiling, 1.0)
    )


def loses_to_loader(best: Trial | None, observation: Observation) -> bool:
    """Whether most of the time is lost to the loader even with the best configuration found."""
    own = observation.anatomy
    if best is None or best.anatomy is None:
        return shares(own).loader > MOSTLY
    parts, loader = best.anatomy, observation.job.loader
    cured = restarts_with(loader, {}) and not restarts_with(loader, best.config)
    if not (parts.turnover_s or cured):  # no epoch ended in its first block
        parts = replace(parts, turnover_s=own.turnover_s)
    return shares(parts).loader > MOSTLY
