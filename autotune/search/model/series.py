"""Blocks that are measured one after another: costly knobs stay fixed, cheap ones alternate."""

from __future__ import annotations

import numpy as np

from autotune.search.model.draws import fastest
from autotune.search.model.evidence import Belief, Evidence
from autotune.search.model.looks import Looks

PLOT_S, MOST_BLOCKS, FEWEST_BLOCKS = 5.0, 16, 4
COSTLY_LOOK_BLOCKS = 4  # most blocks for a first look at a costly value, which may be hopeless
DOUBT_SD, DOUBT = 3.5, 0.01  # a knob is settled if its gain exceeds this many sds plus this much


class SeriesMaker:
    """Makes the index vectors of one series, in the order in which they run."""

    def __init__(self, evidence: Evidence, looks: Looks) -> None:
        self.evidence, self.looks = evidence, looks
        knobs = evidence.columns.knobs
        self.costly = frozenset(
            k for k, knob in enumerate(knobs) if knob.costly and not knob.compiled
        )
        compiled = [] if evidence.compiled is None else [evidence.compiled]
        self.compiled = frozenset(compiled)
        self.locked = self.compiled | frozenset(evidence.graph)

    def first_look(
        self, belief: Belief, waiting: list[tuple[int, int]], blocks: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The next untried values: a single costly one, or a series of cheap ones.

        Each is added to a configuration that has worked, so that a failure can be attributed.
        """
        columns = self.evidence.columns
        base = self.evidence.fastest_measured(belief)
        k, v = waiting[0]
        placed = self.looks.placed(belief, base, k, v)
        if placed is None:
            return []
        if not self._alike(placed, base, self.costly):
            fixed = self.costly | self.compiled | {k}
            known = [placed, *self._with_fewer_threads(placed, k)]
            others = min(blocks, COSTLY_LOOK_BLOCKS) - len(known)
            return [*known, *self._drawn(belief, placed, fixed, others, rng)][:blocks]
        leader = self.evidence.uncompiled(belief.leader)
        if self._alike(leader, base, self.costly):
            base = leader  # its values are known to work; run first, so is the combination
        series = [columns.default] if self._alike(base, columns.default, self.costly) else []
        for k, v in [(k, v) for k, v in waiting if k not in self.costly]:
            placed = self.looks.placed(belief, base, k, v)
            if placed is not None and self._alike(placed, base, self.costly):
                series.append(self._mended(belief, placed, rng))
        del series[max(1, blocks - 1) :]
        return [base, *(series[i] for i in rng.permutation(len(series)))]

    def _with_fewer_threads(self, index: np.ndarray, k: int) -> list[np.ndarray]:
        """``index``, in which knob ``k`` was set, with the next smaller and the smallest number of
        threads, if ``k`` is workers that compete for cores: no draw finds a gain that neither knob
        has alone.
        """
        columns, found = self.evidence.columns, []
        if columns.competing is None or columns.competing[0] != k:
            return []
        threads = columns.competing[1]
        counts = [int(value or 0) for value in columns.knobs[threads].values]
        fewer = [
            v
            for v in sorted(range(len(counts)), key=counts.__getitem__)
            if counts[v] < counts[index[threads]] and not self.evidence.excluded[threads, v]
        ]
        for v in dict.fromkeys([*fewer[-1:], *fewer[:1]]):
            other = index.copy()
            other[threads] = v
            found.append(other)
        return found

    def recalled(self, index: np.ndarray, blocks: int) -> list[np.ndarray]:
        """The expected best, alternating with the same minus one cheap knob at a time. It is
        repeated because all later series build on it."""
        columns, turn = self.evidence.columns, [index]
        on_graph = self.evidence.graph_of(index) is not None
        for k in [int(k) for k in (index != columns.default).nonzero()[0]]:
            if k not in self.costly and not (on_graph and k in self.locked):
                less = index.copy()
                less[k] = columns.default[k]
                turn.append(columns.settle(less))
        return [turn[i % len(turn)] for i in range(blocks)]

    def sampled(
        self, belief: Belief, on_graph: np.ndarray | None, blocks: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Thompson sampling: one draw for the costly knobs, one per block for the others."""
        start, locked = self._start(belief, on_graph)
        costly = self._drawn(belief, start, locked, 1, rng)[0]
        series = self._drawn(belief, costly, locked | self.costly, blocks, rng)
        default = self.evidence.columns.default
        if on_graph is None and self._alike(costly, default, self.costly) and rng.random() < 0.5:
            series[0] = default
        return [series[i] for i in rng.permutation(len(series))]

    def around_leader(
        self, belief: Belief, on_graph: np.ndarray | None, blocks: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The leader with each doubtful knob flipped with probability one half.

        Flipping resets a knob to the default, or moves it one step up or down on a ladder; costly
        knobs are flipped once per series.
        """
        start, locked = self._start(belief, on_graph)
        columns, base = self.evidence.columns, start.copy()
        others = {k: self._doubtful(belief, k) for k in range(len(start)) if k not in locked}
        others = {k: values for k, values in others.items() if values}
        for k in self.costly & others.keys():
            if rng.random() < 0.5:
                base[k] = rng.choice(others[k])
        series = []
        for _ in range(blocks):
            index = base.copy()
            for k, values in others.items():
                if k not in self.costly and rng.random() < 0.5:
                    index[k] = rng.choice(values)
            series.append(self._mended(belief, columns.settle(index), rng))
        return series

    def on_new_graph(
        self, belief: Belief, index: np.ndarray, blocks: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The compiled leader, then the same with cheap knobs outside the graph drawn at random."""
        return [index, *self._drawn(belief, index, self.costly | self.locked, blocks - 1, rng)]

    def _start(
        self, belief: Belief, on_graph: np.ndarray | None
    ) -> tuple[np.ndarray, frozenset[int]]:
        if on_graph is None:
            return self.evidence.uncompiled(belief.leader), self.compiled
        return on_graph, self.locked

    def _drawn(
        self,
        belief: Belief,
        start: np.ndarray,
        fixed: frozenset[int],
        count: int,
        rng: np.random.Generator,
    ) -> list[np.ndarray]:
        if count <= 0:
            return []
        coefficients = belief.posterior.draws(count, rng)
        found = fastest(
            self.evidence.columns, coefficients, self.evidence.allowed, start, fixed=fixed
        )
        return [self._mended(belief, index, rng) for index in found]

    def _mended(self, belief: Belief, index: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.evidence.mended(index, belief.posterior.mean, rng)

    def _doubtful(self, belief: Belief, k: int) -> list[int]:
        """Values of a changed knob that are not clearly worse than the leader's."""
        columns, here = self.evidence.columns, int(belief.leader[k])
        default = int(columns.default[k])
        if here == default:
            return []
        beside = {here - 1, here + 1} if columns.knobs[k].ladder else set()
        found = []
        for v in sorted({default} | beside):
            if 0 <= v < len(columns.knobs[k].values) and self.evidence.allowed[k, v]:
                other = belief.leader.copy()
                other[k] = v
                gain, sd, _ = belief.gain(belief.leader, columns.settle(other))
                if gain < DOUBT_SD * sd + DOUBT:
                    found.append(v)
        return found

    def _alike(self, a: np.ndarray, b: np.ndarray, knobs: frozenset[int]) -> bool:
        return all(a[k] == b[k] for k in knobs)


def blocks_of(block_s: float, seconds_left: float, switch_s: float) -> int:
    """Number of blocks in the next series: about five seconds, or as long as its switch takes."""
    wanted = max(PLOT_S, switch_s) / max(block_s, 1e-9)
    room = max(0.0, seconds_left - switch_s) / max(block_s, 1e-9)
    return int(min(max(wanted, FEWEST_BLOCKS), MOST_BLOCKS, room))
