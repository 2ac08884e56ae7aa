"""Shrinks measured gains: most knobs do nothing and some do a lot (spike and slab).

Spike-and-slab (T. Mitchell and J. Beauchamp, J. Am. Stat. Assoc. 83, 1988): with probability
:data:`SLAB_CHANCE` a change has an effect, of standard deviation :data:`SLAB_SD`; otherwise it has
none. So a gain within its standard error is shrunk to almost nothing, one of several standard
errors hardly at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SLAB_CHANCE, SLAB_SD = 0.3, 0.10


@dataclass(frozen=True)
class Worth:
    """Distribution of a gain: normal (``mean``, ``sd``) with probability ``chance``, else 0."""

    chance: float
    mean: float
    sd: float

    @property
    def expected(self) -> float:
        return self.chance * self.mean

    def beyond(self, price: float) -> float:
        """E[max(0, gain - price)]: the expected gain if the change is made only if it pays."""
        excess = self.mean - price
        if self.sd <= 0:
            slab = max(0.0, excess)
        else:
            z = excess / self.sd
            density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
            slab = excess * 0.5 * math.erfc(-z / math.sqrt(2)) + self.sd * density
        return self.chance * slab + (1 - self.chance) * max(0.0, -price)


def worth(
    gain: float, sd: float, prior_sd: float, live_error: float, expected: float = 0.0
) -> Worth:
    """Convert a gain's normal posterior into its posterior under spike-and-slab.

    Args:
        gain, sd: posterior of the regression.
        prior_sd: prior of the same combination of coefficients; its influence is removed.
        live_error: standard deviation of a live session's error beyond the scatter of its blocks.
        expected: prior mean of the gain; its influence is removed too.
    """
    if sd >= prior_sd * (1 - 1e-6):  # no block contains any information on it
        return Worth(SLAB_CHANCE, 0.0, SLAB_SD)
    of_data = 1 / max(sd, 1e-6) ** 2 - 1 / prior_sd**2
    estimate = (gain / max(sd, 1e-6) ** 2 - expected / prior_sd**2) / of_data
    variance = 1 / of_data + live_error**2
    wide = variance + SLAB_SD**2
    # log odds of "has an effect"
    log_odds = (
        math.log(SLAB_CHANCE / (1 - SLAB_CHANCE))
        + 0.5 * math.log(variance / wide)
        + 0.5 * estimate**2 * (1 / variance - 1 / wide)
    )
    chance = 1 / (1 + math.exp(-min(log_odds, 700.0))) if log_odds > -700 else 0.0
    share = SLAB_SD**2 / wide
    # Do not shrink an effect just because it is larger than the slab expects.
    mean = estimate * max(share, 1 - variance / max(estimate**2, 1e-12)) if estimate else 0.0
    return Worth(chance, mean, math.sqrt(share * variance))
