"""What a change is worth: most knobs do nothing, some do a lot.

Spike-and-slab (T. Mitchell and J. Beauchamp, J. Am. Stat. Assoc. 83, 1988): a change has an
effect with probability :data:`SLAB_CHANCE`, of standard deviation :data:`SLAB_SD`; else it has
none. A gain that is within its error is therefore drawn to nothing, one of several errors hardly
at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SLAB_CHANCE, SLAB_SD = 0.3, 0.10


@dataclass(frozen=True)
class Worth:
    """A gain: nothing, or with probability ``chance`` normal with ``mean`` and ``sd``."""

    chance: float
    mean: float
    sd: float

    @property
    def expected(self) -> float:
        return self.chance * self.mean

    def beyond(self, price: float) -> float:
        """E[max(0, gain - price)]: the gain if the change were made only where it pays."""
        excess = self.mean - price
        if self.sd <= 0:
            slab = max(0.0, excess)
        else:
            z = excess / self.sd
            density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
            slab = excess * 0.5 * math.erfc(-z / math.sqrt(2)) + self.sd * density
        return self.chance * slab + (1 - self.chance) * max(0.0, -price)


def worth(
    gain: float,
    sd: float,
    prior_sd: float,
    live_error: float,
    slab: float = SLAB_CHANCE,
    expected: float = 0.0,
) -> Worth:
    """From a normal posterior of a gain to its posterior under spike-and-slab.

    Args:
        gain, sd: posterior of the regression.
        prior_sd: of the same combination of coefficients, before any block; taken out again.
        live_error: what a live session is off by, beside what its blocks say.
        expected: the gain before any block; taken out again as well.
    """
    if sd >= prior_sd * (1 - 1e-6):  # no block says anything of it
        return Worth(slab, 0.0, SLAB_SD)
    of_data = 1 / max(sd, 1e-6) ** 2 - 1 / prior_sd**2
    estimate = (gain / max(sd, 1e-6) ** 2 - expected / prior_sd**2) / of_data
    variance = 1 / of_data + live_error**2
    wide = variance + SLAB_SD**2
    # log odds of "has an effect"
    log_odds = (
        math.log(slab / (1 - slab))
        + 0.5 * math.log(variance / wide)
        + 0.5 * estimate**2 * (1 / variance - 1 / wide)
    )
    chance = 1 / (1 + math.exp(-min(log_odds, 700.0))) if log_odds > -700 else 0.0
    share = SLAB_SD**2 / wide
    # An effect larger than the slab allows for is no smaller for that.
    mean = estimate * max(share, 1 - variance / max(estimate**2, 1e-12)) if estimate else 0.0
    return Worth(chance, mean, math.sqrt(share * variance))
