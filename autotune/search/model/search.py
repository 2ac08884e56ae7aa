"""Ask for the next series, tell every block.

    recalled │ first look │ first look │ … sampled, sampled, compile, sampled, … │ leader, leader │ stopped
    best of similar jobs        every value once    Thompson sampling     last fifth of the time

The caller measures, and keeps the rows and the clock; the search depends only on what it is told
and on its seed. A resumed run tells the rows again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autotune.search.model.answers import Judge
from autotune.search.model.columns import Columns
from autotune.search.model.compiling import Compiling
from autotune.search.model.evidence import Evidence
from autotune.search.model.knobs import FIRST_LOOK, RECALLED, Answer, SearchKnob, Series
from autotune.search.model.looks import EXPECTED, Looks
from autotune.search.model.series import SeriesMaker, blocks_of
from autotune_spaces.base import Config, Value

OPEN_REGRET = 0.002  # the search stops if changes to the answer may gain less than this in total
FEWEST_ROWS = 24  # blocks before it may stop for that
# A measured effect is far from the expected one if it is off by more than this log cost, this many
# standard deviations, and this share of the expected one.
FAR, FAR_SD, FAR_SHARE = 0.05, 3.0, 0.5
OUT_OF_TIME = "its share of the budget is used up"
LEADER_SHARE = 0.8  # share of the time after which only the leader's doubtful knobs are measured


class ModelSearch:
    """Ask/tell over the live knobs of one job.

    Args:
        knobs: what is searched.
        normalize: drops values equal to the default and knobs without effect in a configuration.
        bottleneck: "loader", "compute", "optimizer" or "overhead".
        seed: the same seed and the same blocks give the same proposals.
        noise: standard deviation of one standard block's log cost, as seen before the search.
        compile_start_up_s: value of the compiled knob -> seconds it takes to compile.
        planned_s: seconds the unchanged planned job takes; start-up is weighed against it.
        expected: (knob, value) -> effect on log cost seen in similar jobs. It sets the order of
            trials; the final value of a knob is judged without it.
        reading: preparing batches takes a considerable part of the job's time.
        on_gpu: the job trains on a GPU, see :class:`.Columns`.
    """

    def __init__(
        self,
        knobs: Sequence[SearchKnob],
        *,
        normalize: Callable[[Config], Config],
        bottleneck: str,
        seed: int,
        noise: float = 0.05,
        compile_start_up_s: Mapping[Value, float] | None = None,
        planned_s: float = math.inf,
        expected: Mapping[tuple[str, Value], float] | None = None,
        reading: bool = False,
        on_gpu: bool = False,
    ) -> None:
        if not knobs:
            raise ValueError("nothing to search: no knobs")
        start_up_s = _by_index(knobs, compile_start_up_s or {})
        shares = {v: seconds / planned_s for v, seconds in start_up_s.items()}
        self._columns = Columns(knobs, normalize, bottleneck, expected, reading, on_gpu)
        self._evidence = Evidence(self._columns, bottleneck, noise, shares)
        self._looks = Looks(self._evidence, bottleneck)
        self._maker = SeriesMaker(self._evidence, self._looks)
        self._judge = Judge(self._evidence)
        self._compiling = Compiling(self._judge, start_up_s)
        self._seed = seed
        self._recalled = self._expected_best() if expected else None
        self.stopped = ""

    def next_series(
        self,
        *,
        elapsed_share: float,
        seconds_left: float,
        block_s: float,
        switch_s: float,
        busy: Sequence[Config] = (),
    ) -> Series | None:
        """The series to measure next; None: stop, :attr:`stopped` says why.

        Args:
            elapsed_share: of the search's time, 0 to 1.
            seconds_left: of the search's time.
            block_s: seconds a standard block takes, settling included.
            switch_s: seconds it takes to switch a costly knob; 0.0: there is none.
            busy: configurations being measured elsewhere right now.
        """
        room = blocks_of(block_s, seconds_left, switch_s)
        if room < 2:
            self.stopped = OUT_OF_TIME
            return None
        belief = self._evidence.belief()
        told = (len(self._evidence), len(self._evidence.failures))
        rng = np.random.default_rng((self._seed, *told, *((len(busy),) if busy else ())))
        elsewhere = [self._columns.encode(self._columns.normalize(config)) for config in busy]
        waiting = [
            (k, v)
            for k, v in self._looks.open(belief)
            if not any(index[k] == v for index in elsewhere)
        ]
        recalled = self._recalled_now(seconds_left)
        first_costly = waiting and waiting[0][0] in self._maker.costly
        if not len(self._evidence) and (first_costly or recalled is not None):
            return self._series([self._columns.default] * min(room, 3), FIRST_LOOK)
        if recalled is not None:
            return self._series(self._maker.recalled(recalled, room), RECALLED)
        if waiting:
            looks = self._maker.first_look(belief, waiting, room, rng)
            if looks:
                return self._series(looks, FIRST_LOOK)
        if not waiting and self._nothing_left():
            self.stopped = "no value is left to try"
            return None
        kept, verdicts = self._judge.worth_their_price(belief)
        regret = self._judge.open_regret(belief, kept)
        graph = self._compiling.purchase(
            belief, regret, elapsed_share=elapsed_share, seconds_left=seconds_left
        )
        if graph is not None:
            return self._series(self._maker.on_new_graph(belief, graph, room, rng), "compile")
        settled = regret.sum() < OPEN_REGRET and not self._judge.in_doubt(verdicts)
        if len(self._evidence) >= FEWEST_ROWS and settled:
            self.stopped = f"no single change is expected to gain more than {OPEN_REGRET:.1%}"
            return None
        on_graph = self._compiling.stays(belief)
        if elapsed_share > LEADER_SHARE:
            return self._series(self._maker.around_leader(belief, on_graph, room, rng), "leader")
        return self._series(self._maker.sampled(belief, on_graph, room, rng), "sampled")

    def measured(
        self, config: Config, log_cost: float, weight: float = 1.0, at_s: float | None = None
    ) -> None:
        """Record one block.

        Args:
            log_cost: log of its cost per sample.
            weight: its length relative to a standard block.
            at_s: its time on any monotonic clock: blocks close in time share the machine's level.
                None: unknown; if unknown for all blocks, no levels are estimated.
        """
        if not (math.isfinite(log_cost) and weight > 0):
            raise ValueError(f"a block of log cost {log_cost} and weight {weight}")
        config = self._columns.normalize(config)
        self._evidence.add(config, log_cost, weight, at_s)
        self._forget_recalled(self._columns.encode(config))

    def failed(self, config: Config) -> tuple[tuple[str, Value], ...]:
        """Record that a block failed. Whatever is blamed is never proposed again.

        Returns:
            The block's new value, if all its other values have worked together; else the values
            that do not work together, as far as known; () if they work with more.
        """
        evidence, columns = self._evidence, self._columns
        index = columns.encode(columns.normalize(config))
        self._forget_recalled(index)
        changed = [k for k in range(len(index)) if index[k] != columns.default[k]]
        new = [k for k in changed if not evidence.tried[k, index[k]]]
        rest = index.copy()
        rest[new] = columns.default[new]
        if len(new) == 1 and self._known(columns.settle(rest)):
            evidence.exclude(new[0], int(index[new[0]]))
            return self._named(index, new)
        return self._named(index, sorted(k for k, _ in evidence.failed_together(index)))

    def exclude(self, knob: str, value: Value) -> None:
        """Never propose ``knob`` = ``value`` again; the job's own value stays."""
        k = self._columns.place[knob]
        v = self._columns.knobs[k].index(value)
        if v != self._columns.default[k]:
            self._evidence.exclude(k, v)

    def leader(self) -> dict[str, Value]:
        """The fastest configuration by posterior mean."""
        return self._columns.decode(self._evidence.belief().leader)

    def gain(self, config: Config) -> tuple[float, float]:
        """log(baseline cost / cost of ``config``): posterior mean and standard deviation."""
        index = self._columns.encode(self._columns.normalize(config))
        return self._evidence.belief().gain(index, self._columns.default)[:2]

    def answer(self) -> Answer:
        """The leader without the knobs not worth their price, dropped one by one, worst first."""
        return self._judge.answer(self._evidence.belief())

    def untried(self) -> tuple[str, ...]:
        """Knobs of which no value but the job's own was measured, though one is worth trying."""
        evidence, columns = self._evidence, self._columns
        belief = evidence.belief()
        waiting = {k for k, _ in self._looks.open(belief)}
        if evidence.compiled is not None and self._compiling.left_untried(belief):
            waiting.add(evidence.compiled)
        values_tried = evidence.tried.sum(axis=1)  # the job's own is one of them
        return tuple(
            knob.name
            for k, knob in enumerate(columns.knobs)
            if k in waiting and values_tried[k] == 1
        )

    @property
    def noise(self) -> float:
        """Current estimate of the standard deviation of a standard block's log cost."""
        return self._evidence.belief().noise

    def mispredicted(self) -> tuple[tuple[str, Value], ...]:
        """Values whose measured effect is far from the expected one."""
        belief, columns = self._evidence.belief(), self._columns
        found = []
        for k, v in zip(*self._evidence.tried.nonzero(), strict=True):
            column = columns.column[k, v]
            before = columns.prior_mean[column] if column >= 0 else 0.0
            if before:
                off = abs(belief.posterior.mean[column] - before)
                sd = belief.posterior.covariance[column, column] ** 0.5
                if off > max(FAR, FAR_SD * sd, FAR_SHARE * abs(before)):
                    found.append((columns.knobs[k].name, columns.knobs[k].values[v]))
        return tuple(found)

    def _expected_best(self) -> np.ndarray | None:
        """Every knob at its expected best value; None if that is the unchanged job."""
        columns, index = self._columns, self._columns.default.copy()
        for k, effects in enumerate(columns.effects(columns.prior_mean)):
            if effects.min() < -max(EXPECTED, columns.knobs[k].price):
                index[k] = effects.argmin()
        index = columns.settle(index)
        return None if (index == columns.default).all() else index

    def _recalled_now(self, seconds_left: float) -> np.ndarray | None:
        """The recalled configuration to measure now, without compile if its start-up is too long;
        None if there is none, or it is excluded or known already.
        """
        if self._recalled is None:
            return None
        index, evidence = self._recalled.copy(), self._evidence
        c = evidence.compiled
        if c is not None and self._compiling.too_costly(int(index[c]), seconds_left):
            index[c] = self._columns.default[c]
        known = bool(evidence.excluded[range(len(index)), index].any()) or self._known(index)
        return None if known else index

    def _forget_recalled(self, index: np.ndarray) -> None:
        """Drop the recalled configuration once any configuration but the baseline was measured or
        failed.
        """
        if self._recalled is not None and (index != self._columns.default).any():
            self._recalled = None

    def _nothing_left(self) -> bool:
        """Whether every value but the job's own is excluded."""
        usable = ~self._evidence.excluded
        usable[range(len(self._columns.default)), self._columns.default] = False
        return not usable.any()

    def _known(self, index: np.ndarray) -> bool:
        """Whether ``index`` was measured successfully before; always true for the baseline."""
        known = [self._columns.default, *self._evidence.indices]
        return any((index == other).all() for other in known)

    def _series(self, indices: Sequence[np.ndarray], purpose: str) -> Series:
        return Series(tuple(self._columns.decode(index) for index in indices), purpose)

    def _named(self, index: np.ndarray, knobs: Sequence[int]) -> tuple[tuple[str, Value], ...]:
        return tuple(
            (self._columns.knobs[k].name, self._columns.knobs[k].values[index[k]]) for k in knobs
        )


def _by_index(knobs: Sequence[SearchKnob], of_value: Mapping[Value, float]) -> dict[int, float]:
    compiled = next((knob for knob in knobs if knob.compiled), None)
    if compiled is None:
        return {}
    return {
        compiled.index(value): seconds
        for value, seconds in of_value.items()
        if value in compiled.values
    }
