"""The search model in a run: what to measure next, what was measured, and the resulting trials.

    take ──▶ Series        what to measure next, or None: the search is over
    measured ◀── blocks  in the journal first, then in the model: a resumed run replays them

A *trial* is a configuration that was measured; its figure is what the model concludes from all
blocks in the end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from autotune.history.use import Expected
from autotune.job.configs import key_of, normalize
from autotune.results import Observation, Trial, best_of
from autotune.search.model import FIRST_LOOK, OUT_OF_TIME, RECALLED, Answer, ModelSearch, Series
from autotune.stages.budget import NO_TIME, NO_TRIALS
from autotune.stages.context import RunContext
from autotune.stages.measuring.kept_session import BlockFailed, not_measurable
from autotune.stages.measuring.room import MIN_ITERATIONS
from autotune.stages.measuring.series import BLOCK_S, SETTLE_ITERATIONS, Measured
from autotune.stages.searching.block_record import JOURNAL_KIND, BlockRecord
from autotune.stages.searching.block_times import BlockTimes, NodeClocks
from autotune.stages.searching.configurations import Configuration, Configurations
from autotune.stages.searching.limits import SearchLimits, loses_to_loader
from autotune.stages.searching.models import LAST_LOOK_S, Models, compiles
from autotune.stages.searching.more_workers import NumbersOfWorkers
from autotune_spaces.base import Value
from autotune_spaces.codec import decode, encode

PRIOR_DROPPED = "prior-dropped"  # journal key
MOST_ALIKE = 4  # blocks of a series that alternates nothing


class ModelStudy:
    """The models, what they were told, and the resulting trials. Only one lane at a time can use it.

    Args:
        names: knobs searched first.
        later: knobs that hardly show until the job waits less for its loader: searched with the
            others once ``names`` have no more to give.
    """

    def __init__(
        self,
        context: RunContext,
        observation: Observation,
        names: Sequence[str],
        later: Sequence[str] = (),
        expected: Sequence[Expected] = (),
    ) -> None:
        self.context, self.observation = context, observation
        self.space = context.spec.search_space
        self.stopped = ""
        self._turn = threading.RLock()
        self._configurations = Configurations()
        self._clocks, self._times = NodeClocks(), BlockTimes()
        if context.journal.find(PRIOR_DROPPED) is not None:
            expected = ()
        self._models = Models(context, observation, names, later, expected, self._times.compile_s)
        self._limits = SearchLimits(context, observation, self._models, self._configurations)
        self._workers = NumbersOfWorkers(observation.defaults.get("num_workers", 0))
        self._busy: list[Series] = []  # taken by lanes and not measured yet

    # ------------------------------------------------------------------------- what to measure next

    def take(self) -> Series | None:
        """What to measure next; None: the search is over."""
        with self._turn:
            series = self._next()
            if series is None and self._models.loader_only:
                done, why = ", ".join(self._models.names) or "loader knobs", self.stopped
                self._models.widen()
                self.stopped = ""
                series = self._next()
                then = "searching the other knobs" if series else "nothing is left for the others"
                self.context.progress.note(f"finished {done} ({why}); {then}")
            if series is not None:
                self._busy.append(series)
                leader = self._models.model.leader()
                self.context.progress.measuring(
                    f"{len(self._models.first.rows)} blocks, {series.purpose}; fastest so far",
                    leader,
                )
            return series

    def _next(self) -> Series | None:
        if not self._models.names:
            return None
        self.context.stop.check()
        self.stopped = self._why_over()
        series = None if self.stopped else self._next_series()
        if series is None:
            return None
        within = self._limits.within_trials(series, self._busy)
        if within is None:
            self.stopped = NO_TRIALS
        return within

    def _why_over(self) -> str:
        return self._limits.why_over()

    def _next_series(self) -> Series | None:
        models, iteration_s = self._models, self.observation.anatomy.iteration_s
        left_s = self._limits.left_s()
        first_block_s = max(BLOCK_S, MIN_ITERATIONS * iteration_s) + SETTLE_ITERATIONS * iteration_s
        costly = any(self.space[name].costly for name in models.names)
        next_series = partial(
            ModelSearch.next_series,
            elapsed_share=self._limits.elapsed_share(),
            seconds_left=left_s,
            block_s=self._times.block_s(otherwise=first_block_s),
            switch_s=self._times.switch_s() if costly else 0.0,
            busy=[config for taken in self._busy for config in taken.blocks],
        )
        series = self._more_workers(left_s) or models.next_series(
            next_series, self._configurations, left_s
        )
        self.stopped = models.model.stopped
        if series is None:
            return None
        refining = series.purpose not in (FIRST_LOOK, RECALLED)
        if models.loader_only and refining and not loses_to_loader(self.best(), self.observation):
            self.stopped = "most of the time is no longer lost to the loader"
            return None
        # there is no cheap knob left to alternate
        if len({key_of(config) for config in series.blocks}) == 1:
            series = replace(series, blocks=series.blocks[:MOST_ALIKE])
        return series

    def _more_workers(self, left_s: float) -> Series | None:
        """The best configuration with two numbers of workers, if that is in question."""
        models = self._models
        if models.loader_only or "num_workers" not in models.names or left_s < LAST_LOOK_S:
            return None
        measured = (row[0] for row in models.first.rows)
        series = self._workers.next_series(self.best(), measured, self._configurations)
        if series is None:
            return None
        valid = partial(normalize, defaults=self.observation.defaults, space=self.space)
        return replace(series, blocks=tuple(valid(config) for config in series.blocks))

    # ---------------------------------------------------------------------------- what was measured

    def measured(self, series: Series, blocks: Sequence[Measured], node: str) -> None:
        """Store the blocks of a series and learn from them.

        Raises:
            BaselineError: the unchanged job cannot be measured.
            Interrupted: the user asked to stop; the blocks are in the journal.
        """
        with self._turn:
            self._busy = [taken for taken in self._busy if taken is not series]
            # before journalling: a resumed run would replay it and end again
            self._check_baseline(blocks)
            records: list[BlockRecord] = []
            for place, block in enumerate(blocks):
                at_s, failure = self._clocks.advance(node, block.wall_s), block.failure
                first_time = block.config not in self._configurations and all(
                    r.config != block.config for r in records
                )
                records.append(
                    BlockRecord(
                        config=dict(block.config),
                        log_cost=block.log_cost,
                        weight=block.weight,
                        at_s=round(at_s, 3),
                        node=node,
                        purpose=series.purpose,
                        first=place == 0,
                        settle_s=round(block.settle_s, 4),
                        wall_s=round(block.wall_s, 4),
                        failure=(failure.kind, failure.reason) if failure else None,
                        no_effect=dict(block.no_effect),
                        parts=block.parts if first_time else None,
                        second_log_cost=block.second_log_cost,
                    )
                )
            # as a whole: a resumed search continues between two series
            self.context.journal.append(JOURNAL_KIND, "", encode(records))
            new = [it for it in map(self._learn, records) if it is not None]
            self._learn_workers(records)
            self._check_expected()
            self._announce(new)
        self.context.stop.check()

    def given_up(self, series: Series, reason: str) -> None:
        """Record a series without results, so that its new configurations are not tried again."""
        new = [config for config in series.blocks if config and config not in self._configurations]
        self.measured(
            series,
            [Measured(config, None, failure=BlockFailed("failed", reason)) for config in new],
            "",
        )

    def restore(self) -> None:
        """Replay what was measured before a resume."""
        for entry in self.context.journal.all(JOURNAL_KIND):
            records = [decode(BlockRecord, data) for data in entry.data]
            for record in records:
                self._clocks.set(record.node, record.at_s)
                self._learn(record)
            self._learn_workers(records)

    def _check_baseline(self, blocks: Sequence[Measured]) -> None:
        for block in blocks:
            if block.failure and not block.config:
                raise not_measurable(self.context, block.failure)

    def _learn(self, block: BlockRecord) -> Configuration | None:
        """Take in one block; returns its configuration if that was never measured before."""
        config = block.config
        new = self._configurations.note(block)
        if block.failure:
            if self._configurations.failed(config, *block.failure):
                for name, value in self._models.failed(config, *block.failure):
                    self._exclude(name, value)
            return new
        no_effect = {k: why for k, why in block.no_effect.items() if k in config}
        self._configurations.measured(block, no_effect)
        for name, why in no_effect.items():
            if not self._models.excluded(name, config[name]):
                self.context.progress.warning(f"{name}={config[name]} had no effect: {why}")
                self._exclude(name, config[name])
        compiled = next((v for k, v in config.items() if compiles(self.space[k])), None)
        if self._times.note(block, compiled):
            self._models.forget()
        if block.log_cost is not None:
            known = self.observation.domains.keys() - no_effect.keys()
            self._models.measured(
                {k: v for k, v in config.items() if k in known},
                (block.log_cost, block.second_log_cost),
                block.weight,
                block.at_s,
            )
        return new

    def _exclude(self, name: str, value: Value) -> None:
        """Never try this value again."""
        self._models.exclude(name, value)

    def _learn_workers(self, records: Sequence[BlockRecord]) -> None:
        """Forget what was measured with fewer workers if a series for it has shown more to be
        faster.
        """
        models, number_of = self._models, self._workers.of
        noise = max(models.block_noise, models.model.noise)
        compared = self._workers.learn(records, self._configurations, noise)
        if compared is None:
            return
        fewer, more = compared
        models.keep_figures(it for it in self._configurations if number_of(it.config) <= fewer)
        models.keep(lambda config: not config or number_of(config) > fewer)
        for count in models.domains["num_workers"]:
            if number_of({"num_workers": count}) <= fewer and count != number_of({}):
                self._exclude("num_workers", count)
        self.context.progress.note(
            f"with {fewer} workers the tuned model waits for batches; the search continues with"
            f" {more}"
        )

    def _check_expected(self) -> None:
        """Ignore the history for the rest of this run if it was wrong too often."""
        if wrong := self._models.drop_history():
            self.context.journal.append(PRIOR_DROPPED, "", [list(item) for item in wrong])
            names = ", ".join(f"{name}={value}" for name, value in wrong)
            self.context.progress.note(f"earlier runs mispredicted {names}; ignoring the history")

    def _announce(self, new: Sequence[Configuration]) -> None:
        """Report configurations that were measured for the first time."""
        for configuration in new:
            self.context.progress.trial(self._trial(configuration), self.best())

    # ------------------------------------------------------------------------------ what came of it

    def best(self) -> Trial | None:
        """The fastest measured configuration by the model; None if that is the unchanged job."""
        with self._turn:
            return best_of([self._trial(it) for it in self._configurations if it.complete])

    def trials(self) -> list[Trial]:
        """One trial per configuration, in the order of their first blocks."""
        with self._turn:
            return [self._trial(it) for it in self._configurations]

    def _trial(self, it: Configuration) -> Trial:
        known = it.complete and self._models.searched(it.config)
        return it.trial((it.figure or self._models.figure(it.config)) if known else None)

    def start_up_s(self, name: str, value: Value) -> float:
        """Extra seconds that a job with this value takes to start; 0.0: none, or not measured."""
        return self._times.longest_compile_s.get(value, 0.0) if compiles(self.space[name]) else 0.0

    def untried(self) -> dict[str, tuple[str, ...]]:
        """Why the search ended early -> the knobs that it left without a trial."""
        why = {OUT_OF_TIME: NO_TIME, NO_TRIALS: NO_TRIALS}.get(self.stopped)
        names = self._models.model.untried() if why else ()
        return {why: names} if why and names else {}

    def answer(self) -> Answer:
        with self._turn:
            return self._models.model.answer() if self._models.names else Answer({}, 0.0, ())
