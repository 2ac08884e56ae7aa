"""Bayesian linear regression of log cost on knob values.

    log cost of a block = level + effects of its values + noise / sqrt(weight) + what it is discounted for

A residual beyond :data:`CLIP` standard deviations is a burst of other load and counts as much as one of
that size (P. J. Huber, Robust Statistics, 1981). Effects much larger than their prior widen it: the
prior says that most values do little, not that none does much.

The standard deviation of a block's noise is the one under which all blocks so far are most likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

CLIP = 3.0
ROUNDS = 4  # of clipping and widening; further ones change nothing that matters
LEAST_NOISE, MOST_NOISE, NOISES = 0.002, 0.8, 16
NOISE_PRIOR_SD = 0.7  # of the log of the noise, about what was seen before the search


@dataclass(frozen=True)
class Posterior:
    """Normal: mean and covariance of the coefficients, and the prior's standard deviations used."""

    mean: np.ndarray
    factor: np.ndarray  # lower Cholesky factor of the precision
    covariance: np.ndarray
    prior_sd: np.ndarray  # widened where an effect is large
    counted: np.ndarray  # for each block: 1, or less where it is a burst

    def of(self, contrast: np.ndarray) -> tuple[float, float, float]:
        """Mean, standard deviation and prior standard deviation of a linear combination."""
        import numpy as np

        variance = float(contrast @ self.covariance @ contrast)
        prior = float(np.sum((contrast * self.prior_sd) ** 2))
        return float(contrast @ self.mean), max(variance, 0.0) ** 0.5, prior**0.5

    def draws(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """``count`` draws of the coefficients, one a row."""
        import numpy as np

        z = rng.standard_normal((len(self.mean), count))
        return (self.mean[:, None] + np.linalg.solve(self.factor.T, z)).T


def prior_only(prior_sd: np.ndarray) -> Posterior:
    import numpy as np

    return Posterior(np.zeros(len(prior_sd)), np.diag(1 / prior_sd), np.diag(prior_sd**2), prior_sd, np.ones(0))


def fit(
    x: np.ndarray,
    y: np.ndarray,
    variance: np.ndarray,
    prior_sd: np.ndarray,
    like: Posterior | None = None,
) -> Posterior:
    """Posterior after blocks with design rows ``x``, log costs ``y`` and noise variances ``variance``.

    Args:
        like: a fit of the same blocks with other variances: fewer rounds are needed after it.
    """
    return _fit(x, y, variance, prior_sd, ROUNDS if like is None else ROUNDS // 2, like)[0]


def most_likely_noise(
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    discount: np.ndarray,
    prior_sd: np.ndarray,
    first: float,
    like: Posterior,
) -> float:
    """Standard deviation of a block of weight 1.

    Args:
        discount: variance that each block has on top.
        first: what was seen before the search; counts like one observation of moderate weight.
        like: a fit of the same blocks.
    """
    import numpy as np

    grid = np.geomspace(LEAST_NOISE, MOST_NOISE, NOISES)
    score = np.array([_fit(x, y, s**2 / weight + discount, prior_sd, 1, like)[1] for s in grid])
    score -= 0.5 * (np.log(grid / first) / NOISE_PRIOR_SD) ** 2
    chance = np.exp(score - score.max())
    return float(np.exp(np.sum(chance * np.log(grid)) / chance.sum()))


def _fit(
    x: np.ndarray,
    y: np.ndarray,
    variance: np.ndarray,
    prior_sd: np.ndarray,
    rounds: int,
    like: Posterior | None,
) -> tuple[Posterior, float]:
    """The posterior and the log likelihood of the blocks with the coefficients integrated out."""
    import numpy as np

    sd = np.sqrt(variance)
    counted = np.ones(len(y)) if like is None else like.counted
    widened = prior_sd if like is None else like.prior_sd
    for _ in range(rounds):
        weighted = x * (counted / variance)[:, None]
        precision = weighted.T @ x
        precision[np.diag_indices_from(precision)] += widened**-2
        factor = np.linalg.cholesky(precision)
        inverse = np.linalg.inv(factor)
        mean = inverse.T @ (inverse @ (weighted.T @ y))
        z = np.abs(y - x @ mean) / sd
        counted = np.where(z > CLIP, CLIP / np.maximum(z, CLIP), 1.0)
        used, widened = widened, np.maximum(prior_sd, np.abs(mean))
    loss = np.where(z > CLIP, CLIP * (2 * z - CLIP), z**2).sum() + np.sum((mean / used) ** 2)
    log_determinant = 2 * np.log(np.diag(factor)).sum() + 2 * np.log(used).sum() + np.log(variance).sum()
    posterior = Posterior(mean, factor, inverse.T @ inverse, used, counted)
    return posterior, -0.5 * float(loss + log_determinant)
