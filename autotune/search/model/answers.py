"""The leader without knobs that are not worth their price, and what may still be gained on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from autotune.search.model.evidence import Belief, Evidence
from autotune.search.model.judgement import worth
from autotune.search.model.knobs import Answer, KnobVerdict

# standard deviation of a live session's error beyond the scatter of its blocks; log cost
LIVE_ERROR = 0.007
MINIMUM_GAIN = 0.02  # expected log gain below which the answer is the baseline


class Judge:
    """Spike-and-slab over the posterior of a search."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def price(self, belief: Belief, k: int, v: int) -> float:
        """Price of value ``v`` of knob ``k``, compile start-up included; 0 for the job's own."""
        evidence = self.evidence
        if v == evidence.columns.default[k]:
            return 0.0
        price = evidence.columns.knobs[k].price
        if k == evidence.compiled:
            plain = evidence.uncompiled(belief.leader)
            price += float(
                evidence.start_up_costs(belief.gain(plain, evidence.columns.default)[0])[k, v]
            )
        return price

    def answer(self, belief: Belief) -> Answer:
        """The configuration to keep; a verdict on each knob of the leader, dropped ones first."""
        columns = self.evidence.columns
        index, verdicts = self.worth_their_price(belief)
        if sum(verdict.expected for verdict in verdicts if verdict.kept) < MINIMUM_GAIN:
            index = columns.default
            verdicts = [replace(verdict, kept=False) for verdict in verdicts]
        gain = belief.gain(index, columns.default)[0]
        return Answer(columns.decode(index), gain, tuple(verdicts))

    def worth_their_price(self, belief: Belief) -> tuple[np.ndarray, list[KnobVerdict]]:
        """Like :meth:`answer` without a minimum gain: the point from which the search continues."""
        columns, index = self.evidence.columns, belief.leader.copy()
        dropped: list[KnobVerdict] = []
        while True:
            changed = [k for k in range(len(index)) if index[k] != columns.default[k]]
            verdicts = {k: self._verdict(belief, index, k) for k in changed}
            worst = min(
                (k for k in changed if not self._fails(belief, self._without(index, k))),
                key=lambda k: verdicts[k].expected - verdicts[k].price,
                default=None,
            )
            if worst is None or verdicts[worst].kept:
                # with what does not work without it
                return index, dropped + [replace(v, kept=True) for v in verdicts.values()]
            dropped.append(verdicts[worst])
            index = self._without(index, worst)

    def in_doubt(self, verdicts: Iterable[KnobVerdict]) -> bool:
        """Whether a knob that is not kept may still gain enough: blocks settle that in less time
        than fresh processes do. Not compile, which blocks on other graphs say nothing of."""
        compiled = self.evidence.compiled
        name = "" if compiled is None else self.evidence.columns.knobs[compiled].name
        return any(
            v.gain + 2 * v.sd > max(MINIMUM_GAIN, v.price)
            for v in verdicts
            if not v.kept and v.name != name
        )

    def open_regret(self, belief: Belief, index: np.ndarray) -> np.ndarray:
        """For each knob, what its best change to ``index`` may still gain beyond its price."""
        columns, evidence = self.evidence.columns, self.evidence
        changes = [(k, int(v)) for k, v in np.argwhere(evidence.allowed) if v != index[k]]
        regret = np.zeros(len(index))
        if not changes:
            return regret
        changed = np.tile(index, (len(changes), 1))
        changed[np.arange(len(changes)), [k for k, _ in changes]] = [v for _, v in changes]
        changed = columns.settle(changed)
        gains, sds, priors = belief.gains(changed, index)
        for (k, v), other, gain, sd, prior in zip(
            changes, changed, gains, sds, priors, strict=True
        ):
            if not (other == index).all() and not self._fails(belief, other):
                price = self.price(belief, k, v) - self.price(belief, k, int(index[k]))
                expected = belief.expected(other, index)
                beyond = worth(
                    float(gain), float(sd), float(prior), LIVE_ERROR, expected=expected
                ).beyond(price)
                regret[k] = max(regret[k], beyond)
        return regret

    def _verdict(self, belief: Belief, index: np.ndarray, k: int) -> KnobVerdict:
        columns = self.evidence.columns
        less = self._without(index, k)
        gain, sd, prior = belief.gain(index, less)
        before = belief.expected(index, less)
        expected = worth(gain, sd, prior, LIVE_ERROR, expected=before).expected
        price, knob = self.price(belief, k, int(index[k])), columns.knobs[k]
        return KnobVerdict(
            knob.name, knob.values[index[k]], gain, sd, expected, price, expected > price
        )

    def _fails(self, belief: Belief, index: np.ndarray) -> bool:
        """Whether ``index`` contains a combination known to fail."""
        evidence = self.evidence
        return bool(evidence.failures) and bool(
            (evidence.mended(index, belief.posterior.mean) != index).any()
        )

    def _without(self, index: np.ndarray, k: int) -> np.ndarray:
        columns, changed = self.evidence.columns, index.copy()
        changed[k] = columns.default[k]
        return columns.settle(changed)
