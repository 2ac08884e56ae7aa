"""Try every value once: in which order, and which values can be skipped.

Values expected to gain come first, then guesses, with knobs in the order of the bottleneck. On a
ladder (workers 0, 1, 2 … 64) only neighbors of the best value so far are tried, and nothing beyond
a value that is clearly worse or fails.
"""

from __future__ import annotations

import numpy as np

from autotune.search.model.evidence import Belief, Evidence
from autotune.search.model.knobs import SearchKnob
from autotune.search.seeds import ORDER, guess

EXPECTED = 0.01  # smallest log gain that counts as an expected gain
CLEAR_SD, CLEAR = 3.0, 0.02  # clearly worse: by this many standard deviations, and this log cost


class Looks:
    """The values that have not been measured yet."""

    def __init__(self, evidence: Evidence, bottleneck: str) -> None:
        self.evidence, columns = evidence, evidence.columns
        order = ORDER.get(bottleneck, ORDER["compute"])
        ranked = sorted(
            (k for k, knob in enumerate(columns.knobs) if not knob.compiled),
            key=lambda k: (
                order.index(columns.knobs[k].name) if columns.knobs[k].name in order else len(order)
            ),
        )
        expected = columns.effects(columns.prior_mean)  # negative: faster
        self._guess = [-1] * len(columns.knobs)
        for k in ranked:
            gains = expected[k].min() < -EXPECTED
            self._guess[k] = int(expected[k].argmin()) if gains else _guess_of(columns.knobs[k])
        firsts = [(k, self._guess[k]) for k in ranked if self._guess[k] >= 0]
        rest = [
            (k, v)
            for k in ranked
            for v in reversed(range(len(columns.knobs[k].values)))
            if v not in (columns.default[k], self._guess[k])
        ]
        self._order = sorted(firsts + rest, key=lambda look: round(float(expected[look]), 2))

    def open(self, belief: Belief) -> list[tuple[int, int]]:
        """(knob, value) still to be tried, in order."""
        evidence = self.evidence
        waiting = [
            (k, v)
            for k, v in self._order
            if not evidence.tried[k, v] and not evidence.excluded[k, v]
        ]
        return [(k, v) for k, v in waiting if self._needed(belief, k, v)]

    def placed(self, belief: Belief, base: np.ndarray, k: int, v: int) -> np.ndarray | None:
        """``base`` with value ``v`` of knob ``k`` and what it needs to have an effect; None if that
        is not allowed.
        """
        index = base.copy()
        index[k] = v
        for j, means_something in self.evidence.columns.conditions[k]:
            if means_something[index[j]]:
                continue
            ways = self._ways(j, means_something)
            if not ways:
                return None
            index[j] = min(ways, key=lambda u: self._cost(belief, j, u))
        return index

    def _ways(self, j: int, means_something: np.ndarray) -> list[int]:
        """The allowed values of knob ``j`` beside which another knob has an effect."""
        return [int(u) for u in (means_something & self.evidence.allowed[j]).nonzero()[0]]

    def _needed(self, belief: Belief, k: int, v: int) -> bool:
        for j, means_something in self.evidence.columns.conditions[k]:
            ways = self._ways(j, means_something)
            if not ways or all(self._clearly_worse(belief, j, u) for u in ways):
                return False
        if not self.evidence.columns.knobs[k].ladder:
            return True
        first = self._first(k)
        if not self.evidence.tried[k, first]:
            return first in (v, self._guess[k])
        return self._next_to_best(belief, k, v)

    def _first(self, k: int) -> int:
        """The guess; if it is excluded, the next value towards the job's own that is not."""
        v, own = self._guess[k], int(self.evidence.columns.default[k])
        while v != own and self.evidence.excluded[k, v]:
            v += 1 if own > v else -1
        return v

    def _next_to_best(self, belief: Belief, k: int, v: int) -> bool:
        """Whether ``v`` is the untried step nearest to the best, with nothing worse in between."""
        best = min(
            (
                u
                for u in range(len(self.evidence.columns.knobs[k].values))
                if self.evidence.allowed[k, u]
            ),
            key=lambda u: self._cost(belief, k, u),
        )
        step = 1 if v > best else -1
        for u in range(best + step, v, step):
            if not self.evidence.tried[k, u] and not self.evidence.excluded[k, u]:
                return False  # try the nearer one first
            if self.evidence.excluded[k, u] or self._worse(belief, k, u, best):
                return False
        return True

    def _clearly_worse(self, belief: Belief, k: int, v: int) -> bool:
        return self._worse(belief, k, v, int(belief.leader[k]))

    def _worse(self, belief: Belief, k: int, v: int, than: int) -> bool:
        if v == than:
            return False
        index, other = belief.leader.copy(), belief.leader.copy()
        index[k], other[k] = v, than
        gain, sd, _ = belief.gain(index, other)
        return -gain > max(CLEAR, CLEAR_SD * sd)

    def _cost(self, belief: Belief, k: int, v: int) -> float:
        return float(belief.columns.effects(belief.posterior.mean)[k, v])


def _guess_of(knob: SearchKnob) -> int:
    if len(knob.values) < 2:
        return -1
    if knob.guess is not None and knob.index(knob.guess) != knob.default_index:
        return knob.index(knob.guess)
    return knob.index(guess(knob.name, knob.values, knob.default))
