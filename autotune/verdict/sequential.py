"""A robust mean with an interval that stays valid over several looks, and how wide that interval
must be at each look.

    pairs    5          7          9    …   24
             │ T > c₁?  │ T > c₂?  │ T > c₃? …        T = robust mean / its standard error

**The mean** is a weighted Huber M-estimate: a pair more than 1.4 standard deviations away counts as
if at 1.4, and a pair during which the machine was slower than usual (its *level*: the mean of the
two log costs) counts less. Bursts of other load hit both sides of a pair equally often, so a level
that is high for that reason says how reliable the ratio is, but not in which direction it errs. But
if one side differs more from process to process, its slow processes raise the level *and* move the
ratio, and weighting by levels would leave them out: so levels count without what the ratios explain
of them.

**The bounds** are quantiles of T itself for normal pairs; each is crossed for the first time with
its share of the level. The interval keeps its level no matter at which look one stops. The lower
end, the only one that can adopt a candidate that is not faster, has its own level and saves most of
it for late looks; the upper end, which rejects candidates without a gain, spends its level early.

Sources: P. Huber, "Robust estimation of a location parameter", Ann. Math. Stat. 35 (1964), with his
proposal 2 for the scale; repeated confidence intervals: C. Jennison and B. Turnbull, J. R. Stat.
Soc. B 51 (1989); spending the level look by look: K. Lan and D. DeMets, Biometrika 70 (1983).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import median_low

import numpy as np

from autotune.verdict.bounds import BOUNDS

FEW = 8  # with fewer pairs, scale and weights are too uncertain to rely on
HUBER, HUBER_FEW = 1.4, 2.0  # standard deviations up to which a pair counts in full
SLOW, SLOW_FEW = 1.0, 2.0  # a level this many deviations above the median halves a pair's weight
FEW_EXPLAIN = 0.75  # share that counts of what the ratios of few pairs explain of their levels
LEAST_SPREAD = 0.1  # least spread of the levels, as a share of that of the ratios
ITERATIONS = 20  # the bounds apply to the estimate after this many
# spending exponents: up to look j, a share (pairs at j / pairs at the last)^exponent of the level
# is spent
LATE, EARLY = 1.2, 0.6
DRAWS = 100_000  # simulated sequences, each used with both signs
DRAWS_SEED = 1964
CHUNK = 20_000  # sequences at a time
MAD_TO_SD = 1.4826
TINY = 1e-300  # keeps scales above zero


def robust_mean(
    values: Sequence[float], levels: Sequence[float] | None = None
) -> tuple[float, float, int]:
    """(mean, its standard error, degrees of freedom), see the module docstring. A single value has
    an infinite error.

    Args:
        values: log ratios, one per pair.
        levels: how slow the machine was during each pair, log units, from any origin; None:
            unknown.

    Raises:
        ValueError: no values, or another number of levels.
    """
    if len(values) == 0:
        raise ValueError("an interval needs at least one value")
    if levels is not None and len(levels) != len(values):
        raise ValueError(f"{len(values)} values have {len(levels)} levels")
    if len(values) == 1:
        return float(values[0]), math.inf, 0
    ratios = np.array([values], dtype=float)
    seen = np.zeros_like(ratios) if levels is None else np.array([levels], dtype=float)
    means, errors = _means_and_errors(ratios, _unexplained(seen, ratios))
    return float(means[0]), float(errors[0]), len(values) - 1


def levels_by_kind(levels: Sequence[float], kinds: Sequence[Hashable]) -> list[float]:
    """Levels of pairs, less what is usual among the pairs of their kind.

    Pairs that ran on another machine or in the other order are of another kind. The second process
    of a pair may find in memory what the first one read from the disk, which helps the faster side
    more: then a level says in which direction its ratio errs. Usual is the lower median, since other
    load only slows, and may slow half of the few pairs of a kind.

    Args:
        levels: mean of the two log costs of each pair.
        kinds: of each pair.
    """
    by_kind: dict[Hashable, list[float]] = {}
    for kind, level in zip(kinds, levels, strict=True):
        by_kind.setdefault(kind, []).append(level)
    usual = {kind: median_low(found) for kind, found in by_kind.items()}
    return [level - usual[kind] for kind, level in zip(kinds, levels, strict=True)]


def critical_value(
    pairs: int, look: int, looks: Sequence[int], tail: float, spending: float = LATE
) -> float:
    """Distance of an end of the interval from the mean at ``look``, in standard errors; infinite
    for fewer than two pairs.

    Args:
        pairs: number of values. If it is not ``looks[look]``, an equal share of the level is spent
            on this look.
        looks: number of values at each planned look, increasing.
        tail: probability that this end ever misses the truth, over all looks.
        spending: :data:`LATE` or :data:`EARLY`.
    """
    if pairs < 2:
        return math.inf
    planned = tuple(looks)
    if pairs == planned[look]:
        return boundary(planned, tail, spending)[look]
    return boundary((pairs,), tail / len(planned))[0]


@lru_cache(maxsize=64)
def boundary(looks: tuple[int, ...], tail: float, spending: float = LATE) -> tuple[float, ...]:
    """Critical values of T, one per look (in pairs, increasing), which normal pairs exceed with
    total probability ``tail``.

    Known ones are in bounds.py; others are simulated once, always from the same normal sequences.
    Pairs hit by bursts have heavier tails than normal ones, which widens the error more than the
    scatter of the mean, so the level is then kept with some margin.
    """
    return BOUNDS.get((looks, round(tail, 9), spending)) or simulated_boundary(
        looks, tail, DRAWS, spending
    )


def simulated_boundary(
    looks: tuple[int, ...], tail: float, draws: int, spending: float = LATE, seed: int = DRAWS_SEED
) -> tuple[float, ...]:
    """:func:`boundary` from ``draws`` sequences and their mirror images."""
    return passed_first(simulated(looks, draws, seed), looks, tail, spending)


def simulated(looks: tuple[int, ...], draws: int, seed: int) -> np.ndarray:
    """T at each look, for normal pairs whose levels carry no information: (sequences, looks)."""
    rng, chunks = np.random.default_rng(seed), []
    for n in [CHUNK] * (draws // CHUNK) + [draws % CHUNK] * (draws % CHUNK > 0):
        ratios = rng.standard_normal((n, looks[-1]))
        levels = rng.standard_normal((n, looks[-1])) / 2
        found = [_means_and_errors(ratios[:, :pairs], levels[:, :pairs]) for pairs in looks]
        chunks.append(np.stack([mean / error for mean, error in found], axis=1))
    return np.concatenate(chunks)


def passed_first(
    t: np.ndarray, looks: tuple[int, ...], tail: float, spending: float
) -> tuple[float, ...]:
    """Bounds such that each is the first to be crossed with its share of ``tail``; ``t`` and -``t``
    are equally likely.
    """
    t = np.concatenate([t, -t])
    sequences, bounds, spent = len(t), [], 0.0
    for look, pairs in enumerate(looks):
        share = tail * (pairs / looks[-1]) ** spending - spent
        spent += share
        place = max(len(t) - max(round(share * sequences), 1), 0)
        bounds.append(float(np.partition(t[:, look], place)[place]))
        t = t[t[:, look] < bounds[-1]]
    return tuple(bounds)


def _means_and_errors(ratios: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """:func:`robust_mean` of every row."""
    few = ratios.shape[1] < FEW
    k = HUBER_FEW if few else HUBER
    middle = np.median(ratios, axis=1, keepdims=True)
    least = LEAST_SPREAD * MAD_TO_SD * np.median(abs(ratios - middle), axis=1, keepdims=True)
    weights = _weights(levels, least, SLOW_FEW if few else SLOW)
    total, squares = weights.sum(axis=1, keepdims=True), (weights**2).sum(axis=1, keepdims=True)
    pairs = total**2 / squares  # effective number of pairs of equal weight
    mean = _weighted_median(ratios, weights)
    scale = MAD_TO_SD * _weighted_median(abs(ratios - mean), weights) + TINY
    for _ in range(ITERATIONS):
        off = ratios - mean
        inside = (weights * (abs(off) <= k * scale)).sum(axis=1, keepdims=True) / total
        mean = mean + (weights * np.clip(off, -k * scale, k * scale)).sum(
            axis=1, keepdims=True
        ) / total / np.maximum(inside, 0.2)
        drawn_in = np.clip(ratios - mean, -k * scale, k * scale)
        variance = (weights * drawn_in**2).sum(axis=1, keepdims=True) / total * pairs / (pairs - 1)
        scale = np.sqrt(variance / _clipped_variance(k)) + TINY
    off = ratios - mean
    inside = np.maximum((weights * (abs(off) <= k * scale)).sum(axis=1), weights.max(axis=1) / 2)
    drawn_in = np.clip(off, -k * scale, k * scale)
    error = np.sqrt((weights**2 * drawn_in**2).sum(axis=1) * (pairs / (pairs - 1))[:, 0]) / inside
    return mean[:, 0], error


def _unexplained(levels: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """The levels less what a line through the ratios explains of them; of few pairs less
    most of that, because a burst or two explain as much by chance.
    """
    off = ratios - ratios.mean(axis=1, keepdims=True)
    slope = (off * levels).sum(axis=1, keepdims=True) / ((off**2).sum(axis=1, keepdims=True) + TINY)
    return levels - (FEW_EXPLAIN if ratios.shape[1] < FEW else 1.0) * slope * off


def _weights(levels: np.ndarray, least: np.ndarray, slow: float) -> np.ndarray:
    """1 up to the median level, then decreasing with the distance in spreads. The spread is that of
    the lower half, which bursts do not affect.
    """
    middle = np.median(levels, axis=1, keepdims=True)
    lower = np.sort(levels, axis=1)[:, : (levels.shape[1] + 1) // 2] - middle
    spread = np.maximum(np.sqrt((lower**2).mean(axis=1, keepdims=True)), least) + TINY
    return 1 / (1 + (np.maximum(levels - middle, 0) / (slow * spread)) ** 2)


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    order = np.argsort(values, axis=1)
    passed = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
    place = (passed > passed[:, -1:] / 2).argmax(axis=1)[:, None]
    return np.take_along_axis(np.take_along_axis(values, order, axis=1), place, axis=1)


def _clipped_variance(k: float) -> float:
    """Variance of a standard normal variable clipped at ± ``k``."""
    inside = math.erf(k / math.sqrt(2))
    return inside - 2 * k * math.exp(-k * k / 2) / math.sqrt(2 * math.pi) + k * k * (1 - inside)


def t_quantile(p: float, freedom: float) -> float:
    """Quantile ``p`` of Student's t. scipy.special imports in a fraction of scipy.stats's time."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))
