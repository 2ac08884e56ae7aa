"""What fails is known by name: a value, or two values that do not go together.

A block that fails blames the value that is new in it, if all the rest was measured well together.
If nothing in it is new, two of its values do not go together: any pair that no block had so far
is a suspect. From then on a block has at most one suspect pair; one that fails names it, one that
does not clears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Values = frozenset[tuple[int, int]]  # (knob, value), none of them the job's own


class Failures:
    """Combinations that are not to be proposed."""

    def __init__(self, default: np.ndarray) -> None:
        self._default = default
        self.barred: set[Values] = set()
        self._open: list[set[Values]] = []  # of each failure that is not explained: the suspects

    def __len__(self) -> int:
        return len(self.barred) + len(self._open)

    def values(self, index: np.ndarray) -> Values:
        """What differs from the job's own."""
        return frozenset(
            (k, int(v))
            for k, (v, own) in enumerate(zip(index, self._default, strict=True))
            if v != own
        )

    def together(self, index: np.ndarray, measured: Sequence[np.ndarray]) -> Values:
        """``index`` failed, of values that each work: those that are to blame, or all of them."""
        values = self.values(index)
        self.barred.add(values)
        before = {pair for suspects in self._open for pair in suspects if pair <= values}
        if len(before) == 1:  # the one suspect it was allowed to have
            self._bar(before)
            return next(iter(before))
        known = [self.values(other) for other in measured]
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
        """A block that was measured well clears its pairs."""
        if not self._open:
            return
        values = self.values(index)
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
        """``index`` without what is barred and with at most one suspect pair.

        Args:
            effects: (knob, value) -> log cost; of two values the one that gives less goes.
            rng: pick one by chance instead, so that every pair gets its turn.
        """
        index = index.copy()
        while True:
            values = self.values(index)
            wrong = next((bar for bar in self.barred if bar <= values), None)
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
