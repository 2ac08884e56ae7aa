"""The search models of a run, one per objective, and everything they are built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from autotune.history.use import Expected
from autotune.job.configs import live_domains, normalize
from autotune.results import Observation
from autotune.search.focus import LOADER_KINDS, SURE
from autotune.search.model import ModelSearch, SearchKnob, Series
from autotune.search.seeds import LOADER, guess
from autotune.stages.context import RunContext
from autotune.stages.decisions.worth_it import PRICES
from autotune.stages.measuring.fresh import understated
from autotune.stages.measuring.kept_session import TOO_MANY_WORKERS
from autotune.stages.searching.configurations import Configuration, Configurations, Figure
from autotune_spaces.base import Config, Knob, Scope, Value

MOST_MISPREDICTED = 3  # knobs that the history mispredicts before it is ignored
LAST_LOOK_S = 30.0  # required to measure the answer by the second objective, which may compile
READING = 0.2  # share of time waiting for batches above which threads affect that

# configuration, log cost, weight, time in seconds
Row = tuple[dict[str, Value], float, float, float]


class ObjectiveModel:
    """The measured rows of one objective and their model.

    The model is built on first use and updated with every row until ``forget``, which is called
    when its settings have changed.

    Args:
        make: builds a model of the knobs searched now from these rows.
        searched: whether a configuration has only those knobs; the model is given no others.
    """

    def __init__(
        self, make: Callable[[Sequence[Row]], ModelSearch], searched: Callable[[Config], bool]
    ) -> None:
        self.rows: list[Row] = []
        self._make, self._searched = make, searched
        self._made: ModelSearch | None = None

    @property
    def model(self) -> ModelSearch:
        if self._made is None:
            self._made = self._make([row for row in self.rows if self._searched(row[0])])
        return self._made

    def measured(self, row: Row) -> None:
        self.rows.append(row)
        if self._made is not None and self._searched(row[0]):
            self._made.measured(*row)

    def failed(self, config: Config) -> tuple[tuple[str, Value], ...]:
        """Returns what is blamed for it, if the model knows; see :meth:`.ModelSearch.failed`."""
        if self._made is not None and self._searched(config):
            return self._made.failed(config)
        return ()

    def exclude(self, name: str, value: Value) -> None:
        if self._made is not None and self._searched({name: value}):
            self._made.exclude(name, value)

    def keep(self, kept: Callable[[Config], bool]) -> None:
        """Forget the rows of all other configurations."""
        self.rows = [row for row in self.rows if kept(row[0])]
        self.forget()

    def forget(self) -> None:
        self._made = None


class Models:
    """The models of the knobs searched now.

    Args:
        names: knobs searched now.
        later: knobs searched once the models are widened.
        expected: what the history says.
        compile_s: seconds that values take to compile, updated as they are measured.
    """

    def __init__(
        self,
        context: RunContext,
        observation: Observation,
        names: Sequence[str],
        later: Sequence[str],
        expected: Sequence[Expected],
        compile_s: Mapping[Value, float],
    ) -> None:
        self._context, self._observation = context, observation
        self._space = context.spec.search_space
        self.domains = live_domains(observation.domains, observation.defaults, self._space)
        self.names, self._later = list(names), list(later)
        self.first = ObjectiveModel(self._make_model, self.searched)
        # has no rows without a second objective
        self.second = ObjectiveModel(self._make_model, self.searched)
        self._failed: list[Config] = []
        self._useless: list[tuple[str, Value]] = []
        self._expected = {(e.knob, e.value): e.effect for e in expected}
        self._compile_s = compile_s
        self._taken = 0

    @property
    def loader_only(self) -> bool:
        """Whether other knobs wait until the loader's have no more to give."""
        return bool(self._later)

    def searched(self, config: Config) -> bool:
        """Whether all knobs of ``config`` are searched now."""
        return set(config) <= set(self.names)

    def widen(self) -> None:
        """Search the later knobs as well, keeping what is known of the others."""
        self.names += [name for name in self._later if name in self.domains]
        self._later = []
        self.forget()

    # -------------------------------------------------------------------------------- what they say

    @property
    def model(self) -> ModelSearch:
        """The first objective's."""
        return self.first.model

    @property
    def by_time(self) -> ModelSearch:
        """The model of the job's time: with objective energy, that of the second figure."""
        by_energy = self._context.spec.objective == "energy" and self.second.rows
        return self.second.model if by_energy else self.first.model

    def figure(self, config: Config) -> Figure:
        second = self.second.model.gain(config)[0] if self.second.rows else None
        return Figure(*self.model.gain(config), second)

    def leader_gain(self) -> tuple[float, float]:
        """Log speed-up of the best configuration, and its standard deviation."""
        return self.by_time.gain(self.model.leader())

    def sure_gain(self) -> float:
        """Log speed-up of the best configuration, less two standard deviations; at least 0.0."""
        gain, sd = self.leader_gain()
        return max(0.0, gain - SURE * sd)

    @property
    def block_noise(self) -> float:
        """Standard deviation of a block's log cost, as seen before the search."""
        return min(max(self._observation.noise, 0.02), 0.2)

    def next_series(
        self,
        ask: Callable[[ModelSearch], Series | None],
        measured: Configurations,
        seconds_left: float,
    ) -> Series | None:
        """Return the next series of the first objective's model, or of the second one's.

        With a second objective, its model provides every third series, which explores where the
        first does not, and all that it still wants once the first has enough. Its answer is
        measured in the end.
        """
        self._taken += 1
        if not (self._context.spec.second_objective and self.second.rows):
            return ask(self.model)
        second = self.second.model
        models = [second, self.model] if self._taken % 3 == 0 else [self.model, second]
        series = ask(models[0]) or ask(models[1])
        if series is None and (leader := second.leader()) and leader not in measured:
            return Series((leader, leader), "leader") if seconds_left > LAST_LOOK_S else None
        return series

    # --------------------------------------------------------------------------- what they are told

    def measured(
        self, config: Config, costs: Sequence[float | None], weight: float, at_s: float
    ) -> None:
        """``costs``: log costs by both objectives; None: not measured."""
        for each, cost in zip(self._both, costs):
            if cost is not None:
                each.measured((dict(config), cost, weight, at_s))

    def failed(self, config: Config, kind: str, reason: str) -> list[tuple[str, Value]]:
        """Take in a failed block; returns the values never to try again."""
        self._failed.append(config)
        # kept if blocks with fewer workers are forgotten
        found = [them[0] for them in [each.failed(config) for each in self._both] if len(them) == 1]
        if kind == "infeasible":
            name = to_blame(config, reason)
            size = config.get(name)
            for larger in self._observation.domains.get(name, ()):
                if isinstance(size, int) and isinstance(larger, int) and larger > size:
                    found.append((name, larger))
        return found

    def excluded(self, name: str, value: Value) -> bool:
        return (name, value) in self._useless

    def exclude(self, name: str, value: Value) -> None:
        self._useless.append((name, value))
        for each in self._both:
            each.exclude(name, value)

    def drop_history(self) -> tuple[tuple[str, Value], ...]:
        """Ignore the history if it was wrong too often; returns the values it was wrong about."""
        wrong = self.model.mispredicted() if self._expected else ()
        if len({name for name, _ in wrong}) < MOST_MISPREDICTED:
            return ()
        self._expected = {}
        self.forget()
        return wrong

    def forget(self) -> None:
        for each in self._both:
            each.forget()

    def keep(self, kept: Callable[[Config], bool]) -> None:
        """Forget what was measured of all other configurations."""
        for each in self._both:
            each.keep(kept)

    def keep_figures(self, measured: Iterable[Configuration]) -> None:
        """Keep what the models say of these, by all knobs: a resumed search learns of this series
        before it searches the knobs that wait for the loader.
        """
        now, self.names, self._later = (self.names, self._later), list(self.domains), []
        self.forget()
        for seen in measured:
            if seen.complete and seen.figure is None:
                seen.figure = self.figure(seen.config)
        self.names, self._later = now
        self.forget()

    # ---------------------------------------------------------------------------- how they are made

    @property
    def _both(self) -> tuple[ObjectiveModel, ObjectiveModel]:
        return self.first, self.second

    def _make_model(self, rows: Sequence[Row]) -> ModelSearch:
        observation = self._observation
        model = ModelSearch(
            [self._search_knob(name) for name in self.names],
            normalize=partial(normalize, defaults=observation.defaults, space=self._space),
            bottleneck=self._bottleneck,
            seed=self._context.seed,
            noise=self.block_noise,
            compile_start_up_s=self._compile_s,
            planned_s=self._context.spec.planned_steps * observation.anatomy.iteration_s,
            expected=self._expected,
            reading=observation.anatomy.reader_ratio > READING,
            on_gpu=observation.job.device == "cuda",
        )
        for row in rows:
            model.measured(*row)
        for config in filter(self.searched, self._failed):
            model.failed(config)
        for name, value in self._useless:
            if name in self.names:
                model.exclude(name, value)
        return model

    def _search_knob(self, name: str) -> SearchKnob:
        knob, default = self._space[name], self._observation.defaults[name]
        live = self.domains[name]
        return SearchKnob(
            name,
            live,
            default,
            costly=knob.costly,
            compiled=compiles(knob),
            in_graph=knob.in_graph,
            loader=knob.loader,
            # if live figures understate the knob, fresh runs decide
            price=0.0 if understated(knob, self._observation) else PRICES[knob.numerics],
            guess=guess(name, live, default, self._observation.bottleneck),
        )

    @property
    def _bottleneck(self) -> str:
        if self.loader_only:
            return "loader"
        own = self._observation.bottleneck
        return "compute" if own in LOADER_KINDS else own


def compiles(knob: Knob) -> bool:
    return knob.start_up_cost and knob.scope is Scope.LIVE


def to_blame(config: Config, reason: str) -> str:
    """Name the knob whose value was too large for the machine."""
    # no other knob in it can be too large
    if TOO_MANY_WORKERS in reason or set(config) <= {*LOADER}:
        return "num_workers"
    return "batch_size"
