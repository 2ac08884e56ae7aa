"""Planted search spaces: knobs with known effects, and the simulated machine that measures them.

    mix of 11, mix of 20   a knob worth 1.4x, one 1.2x, two 1.05x, one 0.8x, the others
                           nothing; which ones is random; two pairs gain less together than their
                           sum, one pair more
    loader                 11 knobs; workers first (2 to 5x), then compute behind them as above
    nothing to gain        11 knobs without effect, one of them 0.8x

The noise matches 16 fresh runs of the example: iterations scatter by 5 %, the level wanders by 4 %
within 0.06 s and by 5.5 % within 3 s, so that two windows of 0.7 s differ by 6 %. Other noise
levels scale it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from autotune.search.model import SearchKnob
from autotune_spaces.base import Config

GAINS = (1.4, 1.2, 1.05, 1.05, 0.8)
ITERATION_S = 0.02
WHITE, FAST, SLOW, FAST_S, SLOW_S = 0.05, 0.04, 0.055, 0.06, 3.0
MEASURED_NOISE = 0.06  # the resulting noise of 0.7 s
SETTLE_ITERATIONS = 3
SWITCH_S = {"num_workers": 2.0, "prefetch_factor": 2.0}
COMPILE_S = 10.0
START_UP_S = 0.5  # of a fresh process, besides its 4.5 s of measuring
FRESH_S = 4.5
PROCESS_NOISE = 0.01


@dataclass(frozen=True)
class Space:
    knobs: tuple[SearchKnob, ...]
    bottleneck: str
    effects: Mapping[tuple[str, object], float]  # on the log cost of compute
    pairs: Mapping[frozenset, float] = field(default_factory=dict)
    # loader seconds per second of compute; 0: workers have an effect like any other knob
    data: float = 0.0

    @property
    def defaults(self) -> dict:
        return {knob.name: knob.default for knob in self.knobs}

    def normalize(self, config: Config) -> dict:
        defaults = self.defaults
        kept = {
            k: v for k, v in config.items() if v != defaults[k] or type(v) is not type(defaults[k])
        }
        if not kept.get("num_workers"):
            kept.pop("prefetch_factor", None)
        return kept

    def log_cost(self, config: Config) -> float:
        items = set(config.items())
        compute = sum(self.effects.get(item, 0.0) for item in items)
        compute += sum(more for pair, more in self.pairs.items() if pair <= items)
        if not self.data:
            return compute
        workers = config.get("num_workers", 0)
        if not workers:
            return math.log(self.data + math.exp(compute))
        reader = self.data / min(workers, 12) * (1.1 if "prefetch_factor" not in config else 1.0)
        return math.log((reader**8 + math.exp(8 * compute)) ** (1 / 8)) + 0.002 * workers

    def best(self) -> float:
        """Log cost of the fastest configuration: all combinations of the knobs that matter."""
        matter = {name for name, _ in self.effects} | {
            name for pair in self.pairs for name, _ in pair
        }
        if self.data:
            matter |= {"num_workers", "prefetch_factor"}
        domains = [[(k.name, v) for v in k.values] for k in self.knobs if k.name in matter]
        return min(self.log_cost(self.normalize(dict(c))) for c in itertools.product(*domains))

    def needless(self, config: Config) -> int:
        """Number of knobs in ``config`` that gain less than 0.3 % on their own."""
        cost = self.log_cost(config)
        return sum(
            self.log_cost(self.normalize({k: v for k, v in config.items() if k != name}))
            < cost + 0.003
            for name in config
        )


def mix(size: int, rng: np.random.Generator, gains: tuple[float, ...] = GAINS) -> Space:
    knobs = _knobs(size, rng)
    chosen = [knobs[i] for i in rng.permutation(len(knobs)) if knobs[i].name != "prefetch_factor"]
    effects: dict = {}
    best = []
    for knob, gain in zip(chosen, gains, strict=False):
        best.append(plant(knob, -math.log(gain), effects, rng))
    return Space(knobs, "compute", effects, planted_pairs(best, gains, rng))


def loader(rng: np.random.Generator) -> Space:
    knobs = _knobs(11, rng, workers=(0, 1, 2, 4, 8, 16))
    compute = [knobs[i] for i in rng.permutation(len(knobs)) if not knobs[i].loader]
    effects: dict = {}
    best = [
        plant(knob, -math.log(gain), effects, rng)
        for knob, gain in zip(compute, GAINS, strict=False)
    ]
    return Space(
        knobs, "loader", effects, planted_pairs(best, GAINS, rng), float(rng.uniform(1.0, 4.0))
    )


def nothing(rng: np.random.Generator) -> Space:
    return mix(11, rng, gains=(0.8,))


SPACES: Mapping[str, Callable[[np.random.Generator], Space]] = {
    "mix of 11": lambda rng: mix(11, rng),
    "mix of 20": lambda rng: mix(20, rng),
    "loader": loader,
    "nothing to gain": nothing,
}


class Machine:
    """A clock, and the noise of everything that runs on the machine."""

    def __init__(self, noise: float, rng: np.random.Generator) -> None:
        self.rng, self.scale, self.now_s = rng, noise / MEASURED_NOISE, 0.0
        self._level, self._level_at = rng.normal(0, SLOW), 0.0

    def measure(self, log_cost: float, seconds: float, iterations: int) -> tuple[float, float]:
        """(mean log cost, seconds taken) of at least that many seconds and iterations."""
        iteration = ITERATION_S * math.exp(log_cost)
        count = max(iterations, round(seconds / iteration))
        took = count * iteration
        noise = self.rng.normal(0, WHITE / math.sqrt(count)) + self.rng.normal(
            0, _averaged(FAST, FAST_S, took)
        )
        noise += self._slow(took)
        self.now_s += took
        return log_cost + noise * self.scale, took

    def _slow(self, took: float) -> float:
        """Mean level over the next ``took`` seconds, in steps of half a second."""
        steps = max(1, round(took / 0.5))
        seen = []
        for i in range(steps):
            at = self.now_s + took * (i + 0.5) / steps
            left = math.exp(-(at - self._level_at) / SLOW_S)
            self._level = self._level * left + self.rng.normal(0, SLOW * math.sqrt(1 - left**2))
            self._level_at = at
            seen.append(self._level)
        return sum(seen) / len(seen)


def _averaged(sd: float, correlated_s: float, over_s: float) -> float:
    """Standard deviation of a level's mean over ``over_s``; its correlation time is
    ``correlated_s``.
    """
    x = over_s / correlated_s
    return sd * math.sqrt(2 / x * (1 - (1 - math.exp(-x)) / x))


def _knobs(
    size: int, rng: np.random.Generator, workers: tuple[int, ...] = (0, 1, 2, 4)
) -> tuple[SearchKnob, ...]:
    knobs = [
        SearchKnob("num_workers", workers, 0, costly=True, loader=True),
        SearchKnob("prefetch_factor", (2, 4), 2, costly=True, loader=True),
        SearchKnob("amp_dtype", ("off", "bfloat16"), "off", in_graph=True, price=0.01),
        SearchKnob("channels_last", (False, True), False, in_graph=True, price=0.01),
        SearchKnob("compile_mode", ("off", "default"), "off", compiled=True, price=0.01),
    ]
    for i in range(size - len(knobs)):
        values = tuple("abcde"[: rng.integers(2, 6)])
        knobs.append(SearchKnob(f"knob_{i}", values, values[rng.integers(len(values))]))
    return tuple(knobs)


def plant(
    knob: SearchKnob, effect: float, effects: dict, rng: np.random.Generator
) -> tuple[str, object]:
    """One value has the whole effect, others a part of it; every value of a harmful knob harms."""
    others = [i for i, v in enumerate(knob.values) if i != knob.default_index]
    best = int(rng.choice(others))
    for i in others:
        share = rng.uniform(-0.3, 0.8) if effect < 0 else rng.uniform(0.4, 1.0)
        if knob.ladder and effect < 0:  # neighboring values have similar effects
            share = 0.6 ** abs(i - best)
        effects[knob.name, knob.values[i]] = effect if i == best else share * effect
    return knob.name, knob.values[best]


def planted_pairs(
    best: list, gains: tuple[float, ...], rng: np.random.Generator
) -> dict[frozenset, float]:
    """The first two and another pair gain less than their sum, a third pair more."""
    if len(best) < 4:
        return {}
    small = math.log(1.05)
    return {
        frozenset(best[:2]): 0.3 * math.log(gains[1]) * rng.uniform(0.5, 1.0),
        frozenset((best[0], best[2])): 0.5 * small,
        frozenset((best[1], best[3])): -0.5 * small,
    }
