"""Attribute failures to a value, or to two values that do not work together.

A failed block blames its new value if all its other values have worked together. If none of its
values is new, two of them do not work together: every pair that no successful block contained is a
suspect. From then on a block contains at most one suspect pair: a failure blames that pair, a
success clears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

Values = frozenset[tuple[int, int]]  # (knob, value), none of them the job's own


class Failures:
    """Combinations that must not be proposed."""

    def __init__(self, default: np.ndarray) -> None:
        self._default = default
        self.barred: set[Values] = set()
        # fails unless more is set -> the combinations with which it has worked
        self._works_with: dict[Values, set[Values]] = {}
        self._open: list[set[Values]] = []  # the suspects of each unexplained failure

    def __len__(self) -> int:
        return len(self.barred) + len(self._works_with) + len(self._open)

    def values(self, index: np.ndarray) -> Values:
        """The values that differ from the job's own."""
        return frozenset(
            (k, int(v))
            for k, (v, own) in enumerate(zip(index, self._default, strict=True))
            if v != own
        )

    def together(self, index: np.ndarray, measured: Sequence[np.ndarray]) -> Values:
        """Record that ``index`` failed although each of its values works on its own.

        Returns:
            The values to blame, or all of them if that is not clear yet; none if they work together
            with more.
        """
        values = self.values(index)
        known = [self.values(other) for other in measured]
        if more := {other for other in known if values < other}:
            self._works_with[values] = more  # a batch size that fits only in bfloat16, say
            return frozenset()
        self.barred.add(values)
        before = {pair for suspects in self._open for pair in suspects if pair <= values}
        if len(before) == 1:  # the one suspect it was allowed to have
            self._bar(before)
            return next(iter(before))
        suspects = {
            pair
            for pair in map(frozenset, combinations(sorted(values), 2))
            if not any(pair <= other for other in known)
        }
        if len(suspects) > 1:
            self._open.append(suspects)
            return values
        self._bar(suspects)
        return next(iter(suspects), values)

    def worked(self, index: np.ndarray) -> None:
        """Clear the pairs of a block that was measured successfully."""
        values = self.values(index)
        for part, more in self._works_with.items():
            if part < values:
                more.add(values)
        self._open = [{pair for pair in suspects if not pair <= values} for suspects in self._open]
        for suspects in [s for s in self._open if len(s) == 1]:
            self._bar(suspects)

    def _bar(self, pairs: set[Values]) -> None:
        self.barred |= pairs
        self._open = [
            suspects
            for suspects in self._open
            if len(suspects - pairs) > 1 and not suspects & pairs
        ]

    def mended(
        self, index: np.ndarray, effects: np.ndarray, rng: np.random.Generator | None
    ) -> np.ndarray:
        """``index`` without barred combinations and with at most one suspect pair.

        Args:
            effects: (knob, value) -> log cost; the value that gains less is dropped.
            rng: drop a random value instead, so that every pair gets its turn.
        """
        index = index.copy()
        while True:
            values = self.values(index)
            wrong = next((bar for bar in self.barred if bar <= values), None)
            for part, more in self._works_with.items():
                if part <= values and not any(other <= values for other in more):
                    wrong = part
            if wrong is None:
                pairs = [pair for suspects in self._open for pair in suspects if pair <= values]
                if len(set(pairs)) < 2:
                    return index
                wrong = frozenset().union(*pairs)
            ranked = sorted(wrong)
            if rng is None:
                k, _ = max(ranked, key=lambda kv: effects[kv])
            else:
                k, _ = ranked[rng.integers(len(ranked))]
            index[k] = self._default[k]
