"""Bayesian linear regression of log cost on knob values.

    log cost of a block = baseline + effects of its values + the machine's level at that time
                        + noise / sqrt(weight) + noise from its discount

A residual beyond :data:`CLIP` standard deviations is taken for a burst of other load and counts
like one of that size (P. J. Huber, Robust Statistics, 1981). Effects much larger than their prior
widen it: the prior says that most values do little, not that none does much.

Blocks within :data:`LEVEL_S` seconds share the machine's level, a random effect. So values that
change between them are known better than a single block's noise suggests, and values constant over
a series (workers, compile) less well than the number of blocks suggests. The levels are eliminated
before solving, so they cost nothing.

The standard deviations of block noise and level come from the likelihood of all blocks so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

CLIP = 3.0
ROUNDS = 4  # of clipping and widening; further ones change nothing that matters
LEAST_NOISE, MOST_NOISE, NOISES = 0.002, 0.8, 16
NOISE_PRIOR_SD = 0.7  # of the log of the noise, centred on what was seen before the search
LEVEL_S = 2.0
LEVEL_RATIOS = (0.0, 0.5, 1.0, 1.5, 2.5)  # standard deviation of the level / that of a block


@dataclass(frozen=True)
class Noise:
    block: float  # standard deviation of a block of weight 1 around its level
    level: float  # standard deviation of the level over time

    @property
    def total(self) -> float:
        return math.hypot(self.block, self.level)


@dataclass(frozen=True)
class Blocks:
    """The measured blocks."""

    x: np.ndarray  # design rows
    y: np.ndarray  # log costs
    weight: np.ndarray
    time: np.ndarray  # which blocks share a level: 0, 1, 2 …
    timed: bool  # False: no two blocks share a level, so levels are not estimated

    def first(self, count: int) -> Blocks:
        return Blocks(
            self.x[:count], self.y[:count], self.weight[:count], self.time[:count], self.timed
        )


@dataclass(frozen=True)
class Posterior:
    """Normal posterior of the coefficients: mean, covariance, and the prior sds that were used."""

    mean: np.ndarray
    factor: np.ndarray  # lower Cholesky factor of the precision
    covariance: np.ndarray
    prior_sd: np.ndarray  # widened where an effect is large
    counted: np.ndarray  # weight factor of each block: 1, or less for a burst
    prior_mean: np.ndarray | float = 0.0

    def around(self, prior_mean: np.ndarray) -> Posterior:
        """This posterior shifted by ``prior_mean``, from which deviations were fitted."""
        return replace(self, mean=self.mean + prior_mean, prior_mean=prior_mean)

    def expected(self, contrast: np.ndarray) -> float:
        """Prior mean of a linear combination."""
        return float((contrast * self.prior_mean).sum())

    def of(self, contrast: np.ndarray) -> tuple[float, float, float]:
        """Mean, standard deviation and prior standard deviation of a linear combination."""
        variance = float(contrast @ self.covariance @ contrast)
        prior = float(np.sum((contrast * self.prior_sd) ** 2))
        return float(contrast @ self.mean), max(variance, 0.0) ** 0.5, prior**0.5

    def draws(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """``count`` draws of the coefficients, one per row."""
        z = rng.standard_normal((len(self.mean), count))
        return (self.mean[:, None] + np.linalg.solve(self.factor.T, z)).T


def prior_only(prior_sd: np.ndarray) -> Posterior:
    return Posterior(
        np.zeros(len(prior_sd)), np.diag(1 / prior_sd), np.diag(prior_sd**2), prior_sd, np.ones(0)
    )


def fit(
    blocks: Blocks,
    noise: Noise,
    discount: np.ndarray | float,
    prior_sd: np.ndarray,
    like: Posterior | None = None,
) -> Posterior:
    """Posterior after ``blocks``.

    Args:
        discount: additional variance of each block.
        like: a fit of the same blocks with other variances: fewer rounds are then needed.
    """
    return _fit(blocks, noise, discount, prior_sd, ROUNDS if like is None else ROUNDS // 2, like)[0]


def most_likely_noise(
    blocks: Blocks, discount: np.ndarray, prior_sd: np.ndarray, first: float, like: Posterior
) -> Noise:
    """Posterior mean (of the logarithm) of the noise.

    Args:
        discount: additional variance of each block.
        first: total noise seen before the search; counts like one observation of moderate weight.
        like: a fit of the same blocks.
    """
    ratios = LEVEL_RATIOS if blocks.timed else (0.0,)
    grid = np.geomspace(LEAST_NOISE, MOST_NOISE, NOISES)
    score = np.array(
        [
            [_fit(blocks, Noise(s, r * s), discount, prior_sd, 1, like)[1] for s in grid]
            for r in ratios
        ]
    )
    total = grid * np.sqrt(1 + np.array(ratios)[:, None] ** 2)
    score -= 0.5 * (np.log(total / first) / NOISE_PRIOR_SD) ** 2
    chance = np.exp(score - score.max())
    chance /= chance.sum()
    block = float(np.exp(np.sum(chance * np.log(grid))))
    return Noise(block, block * float(np.sum(chance * np.array(ratios)[:, None])))


def _fit(
    blocks: Blocks,
    noise: Noise,
    discount: np.ndarray | float,
    prior_sd: np.ndarray,
    rounds: int,
    like: Posterior | None,
) -> tuple[Posterior, float]:
    """The posterior, and the log likelihood with coefficients and levels integrated out."""
    x, y = blocks.x, blocks.y
    variance = noise.block**2 / blocks.weight + discount
    sd = np.sqrt(variance)
    counted = np.ones(len(y)) if like is None else like.counted
    widened = prior_sd if like is None else like.prior_sd
    starts = np.flatnonzero(np.r_[True, blocks.time[1:] != blocks.time[:-1]])
    for _ in range(rounds):
        w = counted / variance
        weighted = x * w[:, None]
        precision = weighted.T @ x
        target = weighted.T @ y
        if noise.level:
            in_time = np.add.reduceat(w, starts)
            x_in_time = np.add.reduceat(weighted, starts, axis=0)
            y_in_time = np.add.reduceat(w * y, starts)
            share = 1 / (in_time + noise.level**-2)
            precision -= (x_in_time * share[:, None]).T @ x_in_time
            target -= x_in_time.T @ (share * y_in_time)
        precision[np.diag_indices_from(precision)] += widened**-2
        factor = np.linalg.cholesky(precision)
        inverse = np.linalg.inv(factor)
        mean = inverse.T @ (inverse @ target)
        residual = y - x @ mean
        if noise.level:
            level = share * np.add.reduceat(w * residual, starts)
            residual = residual - np.repeat(level, np.diff(np.r_[starts, len(y)]))
        z = np.abs(residual) / sd
        counted = np.where(z > CLIP, CLIP / np.maximum(z, CLIP), 1.0)
        used, widened = widened, np.maximum(prior_sd, np.abs(mean))
    loss = np.where(z > CLIP, CLIP * (2 * z - CLIP), z**2).sum() + np.sum((mean / used) ** 2)
    log_determinant = (
        2 * np.log(np.diag(factor)).sum() + 2 * np.log(used).sum() + np.log(variance).sum()
    )
    if noise.level:
        loss += np.sum((level / noise.level) ** 2)
        log_determinant += np.log1p(in_time * noise.level**2).sum()
    posterior = Posterior(mean, factor, inverse.T @ inverse, used, counted)
    return posterior, -0.5 * float(loss + log_determinant)
