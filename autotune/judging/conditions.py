"""`--fail-if`: what makes a gate in CI fail.

    slower[:2%]   faster[:2%]   loss-changed   not-same

An open question never passes: if a verdict is undecided and a condition may still hold (the
interval reaches that far), the exit code says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import InputError
from autotune.judging.records import Judgement

PASSED, FAILED, UNDECIDED = 0, 10, 11  # exit codes
CONDITIONS = ("slower", "faster", "not-same", "loss-changed")


@dataclass(frozen=True)
class Condition:
    """``share``: the least estimated difference; 0.02 is 2%."""

    kind: str
    share: float = 0.0

    def holds(self, it: Judgement) -> bool:
        if self.kind == "loss-changed":
            return it.loss == "changed"
        if self.kind == "not-same":
            return it.speed in ("faster", "slower")
        far = abs(math.log(it.speedup.estimate)) >= math.log1p(self.share)
        return it.speed == self.kind and far

    def open(self, it: Judgement) -> bool:
        """Whether the verdict is undecided and the condition may still hold."""
        if self.kind == "loss-changed":
            return it.loss == "undecided"
        slowest, fastest = math.log(it.speedup.low), math.log(it.speedup.high)
        within_reach = {
            "slower": slowest < 0 and slowest <= -math.log1p(self.share),
            "faster": fastest > 0 and fastest >= math.log1p(self.share),
        }
        return it.speed == "undecided" and within_reach.get(self.kind, True)


EVERYTHING = (Condition("not-same"), Condition("loss-changed"))  # what is asked without a condition


def parse_condition(text: str) -> Condition:
    """Parse the value of ``--fail-if``.

    Raises:
        InputError: an unknown condition, or an invalid share.
    """
    kind, _, share = text.partition(":")
    value = 0.0
    if share:
        try:
            value = float(share.removesuffix("%"))
        except ValueError:
            value = math.nan
        if share.endswith("%"):
            value /= 100
    if kind not in CONDITIONS or not 0 <= value < 1 or (share and kind not in ("slower", "faster")):
        raise InputError(
            "no such condition",
            where=f"--fail-if {text}",
            expected="slower, slower:2%, faster, faster:2%, not-same or loss-changed",
        )
    return Condition(kind, value)


def exit_code(it: Judgement, conditions: Sequence[Condition]) -> int:
    """FAILED if a condition holds; UNDECIDED if one that was asked for is open; else PASSED.

    Without conditions, everything is asked for and nothing fails.
    """
    if any(condition.holds(it) for condition in conditions):
        return FAILED
    asked = conditions or EVERYTHING
    return UNDECIDED if any(condition.open(it) for condition in asked) else PASSED
