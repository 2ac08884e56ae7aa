"""Ways of losing time: one file a rule, one line here.

What cannot be judged says why; a healthy job gets nothing. How a rule is added stands in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.judging import Judgement, judge_by
from autotune.findings.loader_bound import LoaderBound

RULES: tuple[Rule, ...] = (
    LoaderBound(),
)


def judge(cases: Mapping[str, Case]) -> Judgement:
    """Every rule on every side ("baseline", "winner"), and what became of each finding."""
    return judge_by(RULES, cases)


__all__ = ["RULES", "Case", "Judgement", "NotJudgeable", "Rule", "judge"]
