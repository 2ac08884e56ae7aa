"""The search model in a run: what it was told, and the resulting trials.

    take ──▶ Series        what to measure next, or None: the search is over
    measured ◀── blocks  in the journal first, then in the model: a resumed run replays them

A *trial* is a configuration that was measured; its figure is what the model concludes from all
blocks in the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from autotune.history.use import Expected
from autotune.job.configs import key_of, live_domains, normalize
from autotune.results import Observation, Trial
from autotune.search.focus import AT_CEILING, LOADER_KINDS, SURE, at_ceiling
from autotune.search.model import (
    FIRST_LOOK,
    OUT_OF_TIME,
    RECALLED,
    Answer,
    ModelSearch,
    SearchKnob,
    Series,
)
from autotune.search.seeds import LOADER, guess
from autotune.search.stopping import best_of
from autotune.stages.budget import NO_TIME, NO_TRIALS, search_began_s, search_ends_s, tried_enough
from autotune.stages.context import RunContext
from autotune.stages.decisions.worth_it import PRICES
from autotune.stages.measuring.fresh import understated
from autotune.stages.measuring.kept_session import TOO_MANY_WORKERS, BlockFailed, not_measurable
from autotune.stages.measuring.room import MIN_ITERATIONS
from autotune.stages.measuring.series import BLOCK_S, SETTLE_ITERATIONS, Measured
from autotune.stages.searching.block_record import JOURNAL_KIND, BlockRecord
from autotune.stages.searching.block_times import BlockTimes, NodeClocks
from autotune.stages.searching.configurations import Configuration, Configurations, Figure
from autotune.stages.searching.more_workers import NumbersOfWorkers
from autotune.stages.searching.objective_model import ObjectiveModel, Row
from autotune.verdict.bottleneck import shares
from autotune.verdict.timing import restarts_with
from autotune_spaces.base import Config, Knob, Scope, Value
from autotune_spaces.codec import decode, encode

MOST_BLOCKS = 5000  # per search: ends one on a machine too noisy to converge
PRIOR_DROPPED = "prior-dropped"  # journal key
MOST_MISPREDICTED = 3  # knobs that the history mispredicts before it is ignored
MOST_ALIKE = 4  # blocks of a series that alternates nothing
READING = 0.2  # share of time waiting for batches above which threads affect that
LAST_LOOK_S = 30.0  # required to measure the answer by the second objective, which may compile
FIRST_SHARE = 0.5  # largest share of the search's time for the loader's knobs alone
MOSTLY = 0.5  # share of time lost to the loader above which its knobs are searched alone


class ModelStudy:
    """The model, what it was told, and the resulting trials. Only one lane at a time can use it.

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
        self._domains = live_domains(observation.domains, observation.defaults, self.space)
        self.names, self._later = list(names), list(later)  # knobs searched now, and those to come
        self.stopped = ""
        self._turn = threading.RLock()
        self._configurations = Configurations()
        self._first = ObjectiveModel(self._make_model, self._searched)
        # has no rows without a second objective
        self._second = ObjectiveModel(self._make_model, self._searched)
        self._clocks, self._times = NodeClocks(), BlockTimes()
        self._failed: list[dict[str, Value]] = []
        self._useless: list[tuple[str, Value]] = []
        self._expected = {(e.knob, e.value): e.effect for e in expected}
        if context.journal.find(PRIOR_DROPPED) is not None:
            self._expected = {}
        self._began_s = search_began_s(context)
        self._taken = 0
        self._workers = NumbersOfWorkers(observation.defaults.get("num_workers", 0))
        self._busy: list[Series] = []  # taken by lanes and not measured yet

    # ------------------------------------------------------------------------------------ the model

    @property
    def model(self) -> ModelSearch:
        """The model of the knobs searched now, with everything known of them."""
        return self._first.model

    @property
    def _by_time(self) -> ModelSearch:
        """The model of the job's time: with objective energy, that of the second figure."""
        by_energy = self.context.spec.objective == "energy" and self._second.rows
        return self._second.model if by_energy else self._first.model

    @property
    def _models(self) -> tuple[ObjectiveModel, ObjectiveModel]:
        return self._first, self._second

    def _forget_models(self) -> None:
        for each in self._models:
            each.forget()

    def _searched(self, config: Config) -> bool:
        """Whether all knobs of ``config`` are searched now."""
        return set(config) <= set(self.names)

    @property
    def _block_noise(self) -> float:
        """Standard deviation of a block's log cost, as seen before the search."""
        return min(max(self.observation.noise, 0.02), 0.2)

    def _make_model(self, rows: Sequence[Row]) -> ModelSearch:
        observation = self.observation
        model = ModelSearch(
            [self._search_knob(name) for name in self.names],
            normalize=partial(normalize, defaults=observation.defaults, space=self.space),
            bottleneck=self._bottleneck,
            seed=self.context.seed,
            noise=self._block_noise,
            compile_start_up_s=self._times.compile_s,
            planned_s=self.context.spec.planned_steps * observation.anatomy.iteration_s,
            expected=self._expected,
            reading=observation.anatomy.reader_ratio > READING,
            on_gpu=observation.job.device == "cuda",
        )
        for row in rows:
            model.measured(*row)
        for config in filter(self._searched, self._failed):
            model.failed(config)
        for name, value in self._useless:
            if name in self.names:
                model.exclude(name, value)
        return model

    def _search_knob(self, name: str) -> SearchKnob:
        knob, default = self.space[name], self.observation.defaults[name]
        live = self._domains[name]
        return SearchKnob(
            name,
            live,
            default,
            costly=knob.costly,
            compiled=_compiles(knob),
            in_graph=knob.in_graph,
            loader=knob.loader,
            # if live figures understate the knob, fresh runs decide
            price=0.0 if understated(knob, self.observation) else PRICES[knob.numerics],
            guess=guess(name, live, default, self.observation.bottleneck),
        )

    @property
    def _bottleneck(self) -> str:
        if self._loader_binds:
            return "loader"
        own = self.observation.bottleneck
        return "compute" if own in LOADER_KINDS else own

    @property
    def _loader_binds(self) -> bool:
        return bool(self._later)

    def _widen(self) -> None:
        """Search the later knobs as well, keeping what is known of the others."""
        self.names += [name for name in self._later if name in self._domains]
        self._later, self.stopped = [], ""
        self._forget_models()

    # --------------------------------------------------------------------------------- ask and tell

    def take(self) -> Series | None:
        """What to measure next; None: the search is over."""
        with self._turn:
            series = self._next()
            if series is None and self._later:
                done, why = ", ".join(self.names) or "loader knobs", self.stopped
                self._widen()
                series = self._next()
                then = "searching the other knobs" if series else "nothing is left for the others"
                self.context.progress.note(f"finished {done} ({why}); {then}")
            if series is not None:
                self._busy.append(series)
                leader = self.model.leader()
                self.context.progress.measuring(
                    f"{len(self._first.rows)} blocks, {series.purpose}; fastest so far", leader
                )
            return series

    def _next(self) -> Series | None:
        if not self.names:
            return None
        self.context.stop.check()
        self.stopped = self._why_over()
        return None if self.stopped else self._within_the_limit(self._next_series())

    def _why_over(self) -> str:
        """Why nothing more may be measured; "": it may."""
        if tried_enough(self.context, self.observation, len(self._configurations)):
            return NO_TRIALS
        if len(self._first.rows) > MOST_BLOCKS:
            return f"{MOST_BLOCKS:,} blocks were measured"
        if self._loader_binds and at_ceiling(
            *self._by_time.gain(self.model.leader()), self.observation.ceiling
        ):
            return f"at {AT_CEILING:.0%} of what an infinitely fast loader would give"
        if self._loader_binds and self._elapsed_share() > FIRST_SHARE:
            return f"{FIRST_SHARE:.0%} of the search's time is used up"
        return ""

    def _left_s(self) -> float:
        """Seconds left of the search's time."""
        ends_s = search_ends_s(
            self.context,
            self.observation,
            self._began_s,
            self._sure_gain(),
            self._by_time.answer().config,
        )
        return ends_s - self.context.journal.elapsed_s

    def _elapsed_share(self) -> float:
        """Share of the search's time that has passed."""
        passed_s = self.context.journal.elapsed_s - self._began_s
        return passed_s / max(passed_s + self._left_s(), 1.0)

    def _next_series(self) -> Series | None:
        left_s, iteration_s = self._left_s(), self.observation.anatomy.iteration_s
        first_block_s = max(BLOCK_S, MIN_ITERATIONS * iteration_s) + SETTLE_ITERATIONS * iteration_s
        next_series = partial(
            ModelSearch.next_series,
            elapsed_share=self._elapsed_share(),
            seconds_left=left_s,
            block_s=self._times.block_s(otherwise=first_block_s),
            switch_s=self._times.switch_s() if self._has_costly() else 0.0,
            busy=[config for taken in self._busy for config in taken.blocks],
        )
        series = self._more_workers(left_s) or self._next_of_two(next_series, left_s)
        self.stopped = self.model.stopped
        if series is None:
            return None
        refining = series.purpose not in (FIRST_LOOK, RECALLED)
        if self._loader_binds and refining and not self._loses_to_loader():
            self.stopped = "most of the time is no longer lost to the loader"
            return None
        # there is no cheap knob left to alternate
        if len({key_of(config) for config in series.blocks}) == 1:
            series = replace(series, blocks=series.blocks[:MOST_ALIKE])
        return series

    def _next_of_two(
        self, next_series: Callable[[ModelSearch], Series | None], left_s: float
    ) -> Series | None:
        """Return the next series of the first objective's model, or of the second one's.

        With a second objective, its model provides every third series, which explores where the
        first does not, and all that it still wants once the first has enough. Its answer is
        measured in the end.
        """
        self._taken += 1
        if not (self.context.spec.second_objective and self._second.rows):
            return next_series(self.model)
        second = self._second.model
        models = [second, self.model] if self._taken % 3 == 0 else [self.model, second]
        series = next_series(models[0]) or next_series(models[1])
        if series is None and (leader := second.leader()) and leader not in self._configurations:
            return Series((leader, leader), "leader") if left_s > LAST_LOOK_S else None
        return series

    def _more_workers(self, left_s: float) -> Series | None:
        """The best configuration with two numbers of workers, if that is in question."""
        if self._loader_binds or "num_workers" not in self.names or left_s < LAST_LOOK_S:
            return None
        measured = (row[0] for row in self._first.rows)
        series = self._workers.next_series(self.best(), measured, self._configurations)
        if series is None:
            return None
        valid = partial(normalize, defaults=self.observation.defaults, space=self.space)
        return replace(series, blocks=tuple(valid(config) for config in series.blocks))

    def _learn_workers(self, records: Sequence[BlockRecord]) -> None:
        """Forget what was measured with fewer workers if a series for it has shown more to be
        faster.
        """
        noise = max(self._block_noise, self.model.noise)
        compared = self._workers.learn(records, self._configurations, noise)
        if compared is None:
            return
        fewer, more = compared
        number_of = self._workers.of
        self._keep_figures(it for it in self._configurations if number_of(it.config) <= fewer)
        for each in self._models:
            each.keep(lambda config: not config or number_of(config) > fewer)
        for count in self._domains["num_workers"]:
            if number_of({"num_workers": count}) <= fewer and count != number_of({}):
                self._exclude("num_workers", count)
        self.context.progress.note(
            f"with {fewer} workers the tuned model waits for batches; the search continues with"
            f" {more}"
        )

    def _keep_figures(self, measured: Iterable[Configuration]) -> None:
        """Keep what the models say of these, by all knobs: a resumed search learns of this series
        before it searches the knobs that wait for the loader.
        """
        now = self.names, self._later
        self.names, self._later = list(self._domains), []
        self._forget_models()
        for seen in measured:
            if seen.complete and seen.figure is None:
                seen.figure = self._figure(seen.config)
        self.names, self._later = now
        self._forget_models()

    def _figure(self, config: Config) -> Figure:
        second = self._second.model.gain(config)[0] if self._second.rows else None
        return Figure(*self.model.gain(config), second)

    def _sure_gain(self) -> float:
        """Log speed-up of the best configuration, less two standard deviations; at least 0.0."""
        gain, sd = self._by_time.gain(self.model.leader())
        return max(0.0, gain - SURE * sd)

    def _loses_to_loader(self) -> bool:
        """Whether most of the time is lost to the loader even with the best configuration found."""
        best, own = self.best(), self.observation.anatomy
        if best is None or best.anatomy is None:
            return shares(own).loader > MOSTLY
        parts, loader = best.anatomy, self.observation.job.loader
        cured = restarts_with(loader, {}) and not restarts_with(loader, best.config)
        if not (parts.turnover_s or cured):  # no epoch ended in its first block
            parts = replace(parts, turnover_s=own.turnover_s)
        return shares(parts).loader > MOSTLY

    def _within_the_limit(self, series: Series | None) -> Series | None:
        """``series`` without configurations beyond ``budget.trials``; None if nothing is left."""
        if series is None or self.context.spec.budget.trials is None:
            return series
        taken = (key_of(config) for busy in self._busy for config in busy.blocks)
        known, blocks = {*self._configurations.keys, *taken, key_of({})}, []
        for config in series.blocks:
            tried = len(known) - 1
            if key_of(config) in known or not tried_enough(self.context, self.observation, tried):
                known.add(key_of(config))
                blocks.append(config)
        if not blocks:
            self.stopped = NO_TRIALS
        return replace(series, blocks=tuple(blocks)) if blocks else None

    def _has_costly(self) -> bool:
        return any(self.space[name].costly for name in self.names)

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

    def _announce(self, new: Sequence[Configuration]) -> None:
        """Report configurations that were measured for the first time."""
        for configuration in new:
            self.context.progress.trial(self._trial(configuration), self.best())

    def _check_baseline(self, blocks: Sequence[Measured]) -> None:
        for block in blocks:
            if block.failure and not block.config:
                raise not_measurable(self.context, block.failure)

    def _check_expected(self) -> None:
        """Ignore the history for the rest of this run if it was wrong too often."""
        wrong = self.model.mispredicted() if self._expected else ()
        if len({name for name, _ in wrong}) >= MOST_MISPREDICTED:
            self.context.journal.append(PRIOR_DROPPED, "", [list(item) for item in wrong])
            names = ", ".join(f"{name}={value}" for name, value in wrong)
            self.context.progress.note(f"earlier runs mispredicted {names}; ignoring the history")
            self._expected = {}
            self._forget_models()

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

    def _learn(self, block: BlockRecord) -> Configuration | None:
        """Take in one block; returns its configuration if that was never measured before."""
        config = block.config
        new = self._configurations.note(block)
        if block.failure:
            self._learn_failure(config, *block.failure)
            return new
        no_effect = {k: why for k, why in block.no_effect.items() if k in config}
        self._configurations.measured(block, no_effect)
        self._exclude_useless(config, no_effect)
        compiled = next((v for k, v in config.items() if _compiles(self.space[k])), None)
        if self._times.note(block, compiled):
            self._forget_models()
        if block.log_cost is not None:
            real = {
                k: v
                for k, v in config.items()
                if k not in no_effect and k in self.observation.domains
            }
            for of_one, cost in zip(self._models, (block.log_cost, block.second_log_cost)):
                if cost is not None:
                    of_one.measured((real, cost, block.weight, block.at_s))
        return new

    def _learn_failure(self, config: dict[str, Value], kind: str, reason: str) -> None:
        if not self._configurations.failed(config, kind, reason):
            return
        self._failed.append(config)
        for blamed in [each.failed(config) for each in self._models]:
            if len(blamed) == 1:  # kept if blocks with fewer workers are forgotten
                self._exclude(*blamed[0])
        if kind == "infeasible":
            name = to_blame(config, reason)
            size = config.get(name)
            for larger in self.observation.domains.get(name, ()):
                if isinstance(size, int) and isinstance(larger, int) and larger > size:
                    self._exclude(name, larger)

    def _exclude_useless(self, config: Config, no_effect: Mapping[str, str]) -> None:
        for name, why in no_effect.items():
            if (name, config[name]) not in self._useless:
                self.context.progress.warning(f"{name}={config[name]} had no effect: {why}")
                self._exclude(name, config[name])

    def _exclude(self, name: str, value: Value) -> None:
        self._useless.append((name, value))
        for each in self._models:
            each.exclude(name, value)

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
        known = it.complete and self._searched(it.config)
        return it.trial((it.figure or self._figure(it.config)) if known else None)

    def start_up_s(self, name: str, value: Value) -> float:
        """Extra seconds that a job with this value takes to start; 0.0: none, or not measured."""
        return self._times.longest_compile_s.get(value, 0.0) if _compiles(self.space[name]) else 0.0

    def untried(self) -> dict[str, tuple[str, ...]]:
        """Why the search ended early -> the knobs that it left without a trial."""
        why = {OUT_OF_TIME: NO_TIME, NO_TRIALS: NO_TRIALS}.get(self.stopped)
        names = self.model.untried() if why else ()
        return {why: names} if why and names else {}

    def answer(self) -> Answer:
        with self._turn:
            return self.model.answer() if self.names else Answer({}, 0.0, ())


def _compiles(knob: Knob) -> bool:
    return knob.start_up_cost and knob.scope is Scope.LIVE


def to_blame(config: Config, reason: str) -> str:
    """Name the knob whose value was too large for the machine."""
    # no other knob in it can be too large
    if TOO_MANY_WORKERS in reason or set(config) <= {*LOADER}:
        return "num_workers"
    return "batch_size"
