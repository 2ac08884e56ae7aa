"""Configurations as rows of a design matrix.

    column 0            the baseline's level
    one per value       of each knob, except the job's own value: its main effect
    one per known pair  if both are changed: their effect beyond the sum, with a tight prior

In between, a configuration is an index vector: for each knob the index of its value, or of the
default if it is not set. A conditional knob counts only where it has an effect, as ``normalize``
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.focus import COMPETING
from autotune.search.model.knobs import SearchKnob
from autotune_spaces.base import Config, Value, same

MAIN_SD = 0.15  # of a value's effect on log cost
LOADER_SD = 0.5  # the same for loader knobs if the loader is the bottleneck: 20x was seen
BASELINE_SD = 0.5
PAIR_SD = 0.02
GRAPH_SD = 0.005  # of compile with a knob of its graph, on a GPU: a few blocks outweigh it
# Known not to be additive; if loader-bound, pairs of num_workers with compute knobs are added.
PAIRS = (("amp_dtype", "compile_mode"), ("amp_dtype", "channels_last"))
COMPETING_SD = 0.3  # of the interaction of workers and threads if reading takes long


@dataclass(frozen=True)
class Pair:
    """A column that is 1 where knob ``a`` has a value in ``in_a`` and ``b`` one in ``in_b``."""

    a: int
    in_a: tuple[bool, ...]  # by index of the value; as long as the longest domain
    b: int
    in_b: tuple[bool, ...]


class Columns:
    """The coding of one search's configurations.

    Args:
        expected: (knob, value) -> effect on log cost, the centre of its prior; 0 if missing.
        reading: preparing batches takes a considerable part of the time.
        on_gpu: the job trains on a GPU, which may wait for its kernels to be launched. Knobs that
            make kernels faster then show no gain until the model is compiled.
    """

    def __init__(
        self,
        knobs: Sequence[SearchKnob],
        normalize: Callable[[Config], Config],
        bottleneck: str,
        expected: Mapping[tuple[str, Value], float] | None = None,
        reading: bool = False,
        on_gpu: bool = False,
    ) -> None:
        self.knobs, self.normalize, self.on_gpu = tuple(knobs), normalize, on_gpu
        self.place = {knob.name: k for k, knob in enumerate(self.knobs)}
        self.default = np.array([knob.default_index for knob in self.knobs])
        self.most = max(len(knob.values) for knob in self.knobs)
        self.column = np.full((len(self.knobs), self.most), -1)  # column of each value; -1: none
        prior = [BASELINE_SD]
        for k, knob in enumerate(self.knobs):
            for v in range(len(knob.values)):
                if v != self.default[k]:
                    self.column[k, v] = len(prior)
                    prior.append(LOADER_SD if knob.loader and bottleneck == "loader" else MAIN_SD)
        self.mains = len(prior)
        self.pairs = _known_pairs(self.knobs, bottleneck, self.most, on_gpu)
        self.in_a = np.array([pair.in_a for pair in self.pairs], dtype=bool)
        self.in_b = np.array([pair.in_b for pair in self.pairs], dtype=bool)
        # (workers, threads), if they compete for cores
        self.competing = (
            (self.place[COMPETING[0]], self.place[COMPETING[1]])
            if reading and self.place.keys() >= set(COMPETING)
            else None
        )
        self.prior_sd = np.array(prior + [self._sd_of(pair) for pair in self.pairs])
        self.prior_mean = self._prior_mean(expected or {})
        self.conditions = [self._conditions_of(k) for k in range(len(self.knobs))]

    def _sd_of(self, pair: Pair) -> float:
        if (pair.a, pair.b) == self.competing:
            return COMPETING_SD
        return GRAPH_SD if self.knobs[pair.a].compiled else PAIR_SD

    def _prior_mean(self, expected: Mapping[tuple[str, Value], float]) -> np.ndarray:
        mean = np.zeros(len(self.prior_sd))
        for k, knob in enumerate(self.knobs):
            for v, value in enumerate(knob.values):
                for (name, recorded), effect in expected.items():
                    if v != self.default[k] and name == knob.name and same(value, recorded):
                        mean[self.column[k, v]] = effect
        return mean

    def encode(self, config: Config) -> np.ndarray:
        """Index vector of ``config``."""
        index = self.default.copy()
        for name, value in config.items():
            k = self.place[name]
            index[k] = self.knobs[k].index(value)
        return index

    def decode(self, index: np.ndarray) -> dict:
        """The normalized configuration: values that differ from the job's own."""
        config = {
            knob.name: knob.values[index[k]]
            for k, knob in enumerate(self.knobs)
            if index[k] != self.default[k]
        }
        return dict(self.normalize(config))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Design matrix with one row per index vector."""
        n, count = len(indices), len(self.prior_sd)
        x = np.zeros((n, count + 1))  # values without a column write to the last one, dropped below
        x[np.arange(n)[:, None], self.column[np.arange(len(self.knobs)), indices]] = 1.0
        x[:, 0] = 1.0
        if self.pairs:
            places = np.arange(len(self.pairs))
            a, b = indices[:, [p.a for p in self.pairs]], indices[:, [p.b for p in self.pairs]]
            x[:, self.mains : count] = self.in_a[places, a] & self.in_b[places, b]
        return x[:, :count]

    def row(self, index: np.ndarray) -> np.ndarray:
        return self.rows(index[None, :])[0]

    def effects(self, coefficients: np.ndarray) -> np.ndarray:
        """(knob, value) -> main effect, 0 for the job's own value; one such table per row."""
        return np.where(self.column >= 0, coefficients[..., np.maximum(self.column, 0)], 0.0)

    def settle(self, indices: np.ndarray) -> np.ndarray:
        """One or many index vectors, with every knob that has no effect there reset to its default."""
        out = indices.copy()
        for k, conditions in enumerate(self.conditions):
            for j, means_something in conditions:
                out[..., k] = np.where(means_something[out[..., j]], out[..., k], self.default[k])
        return out

    def _conditions_of(self, k: int) -> list[tuple[int, np.ndarray]]:
        """(other knob, for each of its values whether knob ``k`` has an effect beside it)."""
        knob = self.knobs[k]
        value = next((v for v in knob.values if v is not knob.default and v != knob.default), None)
        if value is None:
            return []
        found = []
        for j, other in enumerate(self.knobs):
            if j == k:
                continue
            meaning = [
                knob.name in self.normalize({other.name: v, knob.name: value}) for v in other.values
            ]
            if any(meaning) and not all(meaning):
                found.append((j, np.array(meaning + [False] * (self.most - len(meaning)))))
        return found


def _known_pairs(
    knobs: Sequence[SearchKnob], bottleneck: str, most: int, on_gpu: bool
) -> list[Pair]:
    names = [knob.name for knob in knobs]
    pairs = _pairs_with_compile(knobs, most) if on_gpu else []
    for first, second in PAIRS:
        if first in names and second in names:
            a, b = names.index(first), names.index(second)
            if on_gpu and knobs[b].compiled:
                continue  # one of those above
            for i in _changed(knobs[a]):
                pairs += [Pair(a, _only(i, most), b, _only(j, most)) for j in _changed(knobs[b])]
    if "num_workers" in names:
        # One column per value of the other knob, shared by all worker counts.
        a = names.index("num_workers")
        other = tuple(i in _changed(knobs[a]) for i in range(most))
        for b, knob in enumerate(knobs):
            if knob.name in COMPETING[1:] or (bottleneck == "loader" and not knob.loader):
                pairs += [Pair(a, other, b, _only(j, most)) for j in _changed(knob)]
    return pairs


def _pairs_with_compile(knobs: Sequence[SearchKnob], most: int) -> list[Pair]:
    """One column per value of a knob that compiled graphs depend on, shared by all graphs."""
    return [
        Pair(a, tuple(i in _changed(compiled) for i in range(most)), b, _only(j, most))
        for a, compiled in enumerate(knobs)
        if compiled.compiled
        for b, knob in enumerate(knobs)
        if knob.in_graph
        for j in _changed(knob)
    ]


def _changed(knob: SearchKnob) -> list[int]:
    return [i for i in range(len(knob.values)) if i != knob.default_index]


def _only(index: int, most: int) -> tuple[bool, ...]:
    return tuple(i == index for i in range(most))
