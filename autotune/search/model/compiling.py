"""When the search tries torch.compile, and for how many blocks it keeps the compiled graph.

Compiling takes longer than anything else the search tries, and the knobs that a graph depends on
cannot be switched without compiling again. So a graph is bought for the leader once these knobs are
mostly settled or 30% of the time is used, and another one if it promises a log gain of more than
0.01. Its start-up cost is spread over the planned steps. A GPU that waits for launches shows what
faster kernels gain only in a graph: on any GPU, knobs that make kernels faster are tried once in
one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autotune.search.model.answers import Judge
from autotune.search.model.evidence import Belief
from autotune.search.model.judgement import SLAB_SD, Worth

SETTLED = 0.006  # total gain that the graph's knobs may still have when it is bought
LATEST_SHARE = 0.3  # share of the search's time after which this no longer matters
GAIN_NEEDED = 0.01  # expected log gain needed to buy a graph
LARGEST_SHARE = 0.35  # largest share of the remaining time that a start-up may take
STAY = 40  # blocks to measure on a graph once it is compiled
# expected gain from knowing better whether compile pays, needed to buy the graph again
AGAIN = 0.001
AGAIN_LARGEST_SHARE = 0.15  # largest share of the remaining time that this start-up may take
# knobs that make kernels faster, see Compiling._hidden
FASTER_KERNELS = ("amp_dtype", "matmul_precision", "sdpa_backend", "channels_last")


class Compiling:
    """Decides on the compiled knob, if there is one."""

    def __init__(self, judge: Judge, start_up_s: Mapping[int, float]) -> None:
        self.judge, self.evidence = judge, judge.evidence
        self._start_up_s = start_up_s

    def purchase(
        self, belief: Belief, regret: np.ndarray, *, elapsed_share: float, seconds_left: float
    ) -> np.ndarray | None:
        """The configuration with the most promising compile value, if it is time to try one."""
        evidence, c = self.evidence, self.evidence.compiled
        if c is None:
            return None
        if self._worth_buying_again(regret, seconds_left):
            return self._on(belief, evidence.graph_of(belief.leader) or self._last_graph())
        if regret[list(evidence.graph)].sum() > SETTLED and elapsed_share < LATEST_SHARE:
            return None
        best, best_gain = None, GAIN_NEEDED
        for v in self._values():
            if best is not None and not evidence.bought():
                break  # the first graph uses the guess, if possible
            if v == evidence.columns.default[c] or evidence.excluded[c, v]:
                continue
            if self.too_costly(v, seconds_left):
                continue
            if self._outdone(belief, c, v):
                continue
            # The first time, on what worked without it, so that a failure can be attributed.
            index = (
                belief.leader.copy()
                if evidence.tried[c, v]
                else evidence.fastest_measured(belief).copy()
            )
            index[c] = v
            mended = evidence.mended(index, belief.posterior.mean)
            if (mended != index).any() or evidence.graph_of(index) in evidence.bought():
                continue
            gain = self._expected_gain(belief, index, v)
            if gain > best_gain:
                best, best_gain = index, gain
        return self._hidden(belief, seconds_left) if best is None else best

    def _outdone(self, belief: Belief, c: int, v: int) -> bool:
        """Whether the leader compiles with another value than ``v``, which has been faster; on a GPU,
        clearly faster: the two may have been equal only because of other knobs.
        """
        evidence = self.evidence
        if not evidence.tried[c, v] or belief.leader[c] in (v, evidence.columns.default[c]):
            return False
        index = belief.leader.copy()
        index[c] = v
        gain, sd, _ = belief.gain(index, belief.leader)
        return not evidence.columns.on_gpu or gain + 2 * sd < -GAIN_NEEDED

    def _hidden(self, belief: Belief, seconds_left: float) -> np.ndarray | None:
        """The compiled leader with the guess of a knob that was never compiled with it: without
        compile, a GPU that waited for launches may have hidden its gain. None: there is none.
        """
        evidence, columns = self.evidence, self.evidence.columns
        graph = evidence.graph_of(belief.leader)
        if graph is None or not columns.on_gpu:
            return None
        if self._start_up_s.get(graph[0], 0.0) > AGAIN_LARGEST_SHARE * seconds_left:
            return None
        for place, k in enumerate(evidence.graph, start=1):
            knob, index = columns.knobs[k], belief.leader.copy()
            if knob.guess is None or knob.name not in FASTER_KERNELS:
                continue
            index[k] = knob.index(knob.guess)
            seen = any(bought[place] == index[k] for bought in evidence.bought())
            mended = evidence.mended(index, belief.posterior.mean)
            if not seen and evidence.allowed[k, index[k]] and (mended == index).all():
                return index
        return None

    def left_untried(self, belief: Belief) -> bool:
        """Whether a value that may pay for its start-up was never measured."""
        evidence, c = self.evidence, self.evidence.compiled
        return c is not None and any(
            not (evidence.tried[c, v] or evidence.excluded[c, v])
            and self._expected_gain(belief, belief.leader, v) > GAIN_NEEDED
            for v in self._values()
        )

    def too_costly(self, v: int, seconds_left: float) -> bool:
        """Whether compiling with value ``v`` takes too much of the remaining time."""
        return self._start_up_s.get(v, 0.0) > LARGEST_SHARE * seconds_left

    def _values(self) -> list[int]:
        """Values of the compiled knob, the guess first."""
        knob = self.evidence.columns.knobs[self.evidence.compiled or 0]
        return sorted(range(len(knob.values)), key=lambda v: knob.values[v] != knob.guess)

    def stays(self, belief: Belief) -> np.ndarray | None:
        """The leader on the current graph, if the next series stays on it; else None.

        It stays for :data:`STAY` blocks. After that, all other knobs are measured just as well
        without compile, and the graph's own knobs only there.
        """
        evidence, c = self.evidence, self.evidence.compiled
        if c is None or not len(evidence):
            return None
        graphs = [evidence.graph_of(index) for index in evidence.indices]
        now = graphs[-1]
        if now is None or evidence.excluded[c, now[0]]:
            return None
        best = evidence.graph_of(belief.leader)
        if evidence.columns.on_gpu and best not in (None, now):
            return None  # it was bought to see what it hides
        start = next((i for i, graph in enumerate(reversed(graphs)) if graph != now), len(graphs))
        return self._on(belief, now) if start < STAY else None

    def _worth_buying_again(self, regret: np.ndarray, seconds_left: float) -> bool:
        """Whether compile is the most doubtful knob, was measured in fewer than half of the blocks,
        and starts fast enough.
        """
        evidence, c = self.evidence, self.evidence.compiled
        assert c is not None
        graphs = [evidence.graph_of(index) for index in evidence.indices]
        bought = [graph for graph in graphs if graph is not None]
        if not bought or graphs[-1] is not None or regret[c] < max(AGAIN, regret.max()):
            return False
        costly = self._start_up_s.get(bought[-1][0], 0.0) > AGAIN_LARGEST_SHARE * seconds_left
        return (
            not costly and not evidence.excluded[c, bought[-1][0]] and len(bought) < len(graphs) / 2
        )

    def _last_graph(self) -> tuple[int, ...]:
        graphs = [self.evidence.graph_of(index) for index in self.evidence.indices]
        return [graph for graph in graphs if graph is not None][-1]

    def _on(self, belief: Belief, graph: tuple[int, ...]) -> np.ndarray:
        """The leader on ``graph``."""
        index = belief.leader.copy()
        assert self.evidence.compiled is not None
        for k, v in zip((self.evidence.compiled, *self.evidence.graph), graph, strict=True):
            index[k] = v
        return index

    def _expected_gain(self, belief: Belief, index: np.ndarray, v: int) -> float:
        """Expected gain over the uncompiled configuration, and over the graphs already bought."""
        evidence, c = self.evidence, self.evidence.compiled
        assert c is not None
        price = self.judge.price(belief, c, v)
        if not evidence.tried[c, v]:
            # a compiled model never has exactly the same speed
            return Worth(1.0, 0.0, SLAB_SD).beyond(price)
        gains = [belief.gain(index, evidence.uncompiled(index))[0] - price]
        for bought in evidence.bought():
            if bought[0] == v:
                gains.append(belief.gain(index, self._on(belief, bought))[0])
        return min(gains)
