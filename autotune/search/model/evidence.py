"""The measured blocks, and what they say about the knobs: rows in, posterior and leader out.

Rows are kept, not posteriors: all of them are refitted when the noise is estimated again or the
leader changes, because a block counts less the more strong effects separate it from the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.search.model import regression
from autotune.search.model.columns import Columns
from autotune.search.model.draws import fastest
from autotune.search.model.failures import Failures, Values
from autotune_spaces.base import Config

# Effects are not quite additive: a block is discounted by a share of the strong effects that
# separate it from the leader. (share, log cost from which an effect is strong)
DISCOUNT = (0.15, 0.05)
LOADER_DISCOUNT = (0.4, 0.1)  # loader knobs, if loader-bound: slow loading hides compute effects
FIRST_REFIT = 12  # blocks before the noise is first fitted; then at each sqrt(2) times as many
CENTRES = 4  # most fits until the discount is centred on the resulting leader


@dataclass(frozen=True)
class Belief:
    """What is known at one point of the search."""

    columns: Columns
    posterior: regression.Posterior
    leader: np.ndarray  # index vector
    noise: float

    def gain(self, index: np.ndarray, over: np.ndarray) -> tuple[float, float, float]:
        """log(cost of ``over`` / cost of ``index``): mean, sd, and prior sd."""
        return self.posterior.of(self.columns.row(over) - self.columns.row(index))

    def expected(self, index: np.ndarray, over: np.ndarray) -> float:
        """Prior mean of the same log gain."""
        return self.posterior.expected(self.columns.row(over) - self.columns.row(index))

    def gains(
        self, indices: np.ndarray, over: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """:meth:`gain` for many index vectors."""
        contrasts = self.columns.row(over) - self.columns.rows(indices)
        variance = ((contrasts @ self.posterior.covariance) * contrasts).sum(axis=1)
        prior = np.sqrt(contrasts**2 @ self.posterior.prior_sd**2)
        return contrasts @ self.posterior.mean, np.sqrt(np.maximum(variance, 0.0)), prior


class Evidence:
    """The blocks so far, the failures, and the values excluded from proposals.

    Args:
        first_noise: standard deviation of a block's log cost, as seen before the search.
        start_up_share: value of the compiled knob -> its start-up, as a share of the planned job.
    """

    def __init__(
        self,
        columns: Columns,
        bottleneck: str,
        first_noise: float,
        start_up_share: Mapping[int, float],
    ) -> None:
        self.columns, self.first_noise, self._start_up = columns, first_noise, start_up_share
        self.compiled = next((k for k, knob in enumerate(columns.knobs) if knob.compiled), None)
        self.graph = tuple(k for k, knob in enumerate(columns.knobs) if knob.in_graph)
        self.indices: list[np.ndarray] = []
        self.log_costs: list[float] = []
        self.weights: list[float] = []
        self.times_s: list[float | None] = []
        shape = (len(columns.knobs), columns.most)
        self.tried: np.ndarray = np.zeros(shape, dtype=bool)
        self.tried[np.arange(shape[0]), columns.default] = True
        self.excluded: np.ndarray = np.zeros(shape, dtype=bool)
        for k, knob in enumerate(columns.knobs):
            self.excluded[k, len(knob.values) :] = True
        self.failures = Failures(columns.default)
        self._share, self._strong = np.array(
            [
                LOADER_DISCOUNT if k.loader and bottleneck == "loader" else DISCOUNT
                for k in columns.knobs
            ]
        ).T
        self._noise = (0, regression.Noise(first_noise, 0.0))
        self._belief: Belief | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def add(self, config: Config, log_cost: float, weight: float, at_s: float | None) -> None:
        index = self.columns.encode(config)
        self.indices.append(index)
        self.log_costs.append(log_cost)
        self.weights.append(weight)
        self.times_s.append(at_s)
        self.tried[np.arange(len(index)), index] = True
        self.failures.worked(index)
        self._belief = None

    def exclude(self, knob: int, value: int) -> None:
        self.excluded[knob, value] = True
        self._belief = None

    def failed_together(self, index: np.ndarray) -> Values:
        self._belief = None
        return self.failures.together(index, self.indices)

    @property
    def allowed(self) -> np.ndarray:
        """(knob, value) -> whether it was measured successfully and is not excluded."""
        return self.tried & ~self.excluded

    @cached_property
    def _default_row(self) -> np.ndarray:
        return self.columns.row(self.columns.default)

    def graph_of(self, index: np.ndarray) -> tuple[int, ...] | None:
        """The compiled graph that a configuration runs; None: not compiled."""
        if self.compiled is None or index[self.compiled] == self.columns.default[self.compiled]:
            return None
        return (int(index[self.compiled]), *(int(index[k]) for k in self.graph))

    def uncompiled(self, index: np.ndarray) -> np.ndarray:
        """``index`` without a compiled graph."""
        plain = index.copy()
        if self.compiled is not None:
            plain[self.compiled] = self.columns.default[self.compiled]
        return plain

    def bought(self) -> set[tuple[int, ...]]:
        return {graph for graph in map(self.graph_of, self.indices) if graph is not None}

    def mended(
        self, index: np.ndarray, mean: np.ndarray, rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """``index`` without combinations known to fail; ``mean``: coefficients that choose what to
        drop.
        """
        if not self.failures:
            return index
        mended = self.failures.mended(index, self.columns.effects(mean), rng)
        return self.columns.settle(mended)

    def start_up_costs(self, gain: float) -> np.ndarray:
        """(knob, value) -> log cost of its start-up, spread over the planned steps.

        Args:
            gain: log gain of the configuration over the baseline: the shorter the job, the larger
                the share of its start-up.
        """
        start_up_costs = np.zeros(self.tried.shape)
        if self.compiled is not None:
            for value, share in self._start_up.items():
                start_up_costs[self.compiled, value] = np.log1p(share * np.exp(gain))
        return start_up_costs

    def fastest_measured(self, belief: Belief) -> np.ndarray:
        """The fastest configuration measured without compile whose values are all still allowed."""
        default = self.columns.default
        every = np.arange(len(default))
        known = np.array([default, *(i for i in self.indices if self.graph_of(i) is None)])
        known = known[self.allowed[every, known].all(axis=1)]
        return known[int(belief.gains(known, default)[0].argmax())]

    def belief(self) -> Belief:
        if self._belief is None:
            self._belief = self._believe()
        return self._belief

    def _believe(self) -> Belief:
        columns = self.columns
        if not self.indices:
            posterior = regression.prior_only(columns.prior_sd).around(columns.prior_mean)
            return Belief(columns, posterior, columns.default, self.first_noise)
        indices = np.array(self.indices)
        blocks = self._blocks(indices)
        noise = self._fitted_noise(blocks, indices)
        posterior, leader = self._centred(blocks, noise, indices)
        return Belief(columns, posterior, leader, noise.total)

    def _blocks(self, indices: np.ndarray) -> regression.Blocks:
        """The blocks as regression input; consecutive ones in the same time slot share a level."""
        stretches = [None if at is None else int(at // regression.LEVEL_S) for at in self.times_s]
        new = [a is None or a != b for a, b in zip(stretches[1:], stretches, strict=False)]
        time = np.cumsum([0, *new])
        x = self.columns.rows(indices)
        y = np.array(self.log_costs) - x @ self.columns.prior_mean  # deviation from expectation
        return regression.Blocks(
            x, y - y[0], np.array(self.weights), time, bool(time[-1] < len(y) - 1)
        )

    def _centred(
        self, blocks: regression.Blocks, noise: regression.Noise, indices: np.ndarray
    ) -> tuple[regression.Posterior, np.ndarray]:
        """Posterior and leader, fitted with the discount centred on that same leader."""
        around = self.columns.prior_mean
        posterior = regression.fit(blocks, noise, 0.0, self.columns.prior_sd).around(around)
        leader = self._leader(posterior)
        for _ in range(CENTRES - 1):
            discount = self._discount(posterior, leader, indices)
            if not discount.any():
                break
            posterior = regression.fit(
                blocks, noise, discount, self.columns.prior_sd, posterior
            ).around(around)
            centre, leader = leader, self._leader(posterior)
            if (leader == centre).all():
                break
        return posterior, leader

    def _leader(self, posterior: regression.Posterior) -> np.ndarray:
        """The fastest allowed configuration by posterior mean, start-up included."""
        columns, mean, allowed = self.columns, posterior.mean, self.allowed
        boldest = np.where(allowed, columns.effects(mean), np.inf).argmin(axis=1)
        plain = self.uncompiled(boldest)
        gain = posterior.of(self._default_row - columns.row(columns.settle(plain)))[0]
        start_up_costs = self.start_up_costs(gain)
        found = [
            fastest(columns, mean[None, :], allowed, start, start_up_costs=start_up_costs)[0]
            for start in (columns.default, boldest)
        ]
        every = np.arange(len(columns.knobs))
        costs = [float(columns.row(i) @ mean + start_up_costs[every, i].sum()) for i in found]
        return self.mended(found[int(np.argmin(costs))], mean)

    def _discount(
        self, posterior: regression.Posterior, centre: np.ndarray, indices: np.ndarray
    ) -> np.ndarray:
        """Extra variance of each block for the strong effects that separate it from ``centre``."""
        mean = self.columns.effects(posterior.mean)
        variance = self.columns.effects(np.diag(posterior.covariance))
        every = np.arange(len(centre))
        apart = np.abs(mean - mean[every, centre][:, None])
        sd = np.sqrt(variance + variance[every, centre][:, None])
        strong = (
            np.where((apart > self._strong[:, None]) & (apart > 2 * sd), apart, 0.0)
            * self._share[:, None]
        )
        return strong[every[None, :], indices].sum(axis=1) ** 2

    def _fitted_noise(self, blocks: regression.Blocks, indices: np.ndarray) -> regression.Noise:
        """Noise fitted to the first 12, 17, 24, 34, 48 … blocks, the largest such number so far."""
        count = FIRST_REFIT
        first = regression.Noise(self.first_noise, 0.0)
        if len(indices) < count:
            return first
        while round(count * 2**0.5) <= len(indices):
            count = round(count * 2**0.5)
        if self._noise[0] != count:
            blocks, indices = blocks.first(count), indices[:count]
            posterior, leader = self._centred(blocks, first, indices)
            discount = self._discount(posterior, leader, indices)
            fitted = regression.most_likely_noise(
                blocks, discount, self.columns.prior_sd, self.first_noise, posterior
            )
            self._noise = (count, fitted)
        return self._noise[1]
