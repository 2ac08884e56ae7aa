"""What happens to a finding when the winner is profiled, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import HERE, case

from autotune.explain.records import Finding, Place, Side
from autotune.findings import RULES, Case, NotJudgeable, Rule, judge
from autotune.findings.judging import judge_by


def finding(cost_s: float | None, place=HERE, rule: str = "one") -> Finding:
    return Finding(rule, "One", "", "Seen.", "Mend it.", cost_s, place)


class Told(Rule):
    """A rule with given findings."""

    card = "a rule for tests"

    def __init__(
        self,
        said: dict[str, list[Finding] | Exception],
        name: str = "one",
        knob: str = "",
        explains: tuple[str, ...] = (),
    ) -> None:
        self.said = said
        self.name, self.title, self.knob, self.explains = name, name.title(), knob, explains  # type: ignore[misc]

    def judge(self, case: Case) -> list[Finding]:
        said = self.said.get(case.name, [])
        if isinstance(said, Exception):
            raise said
        return said


CASES = {
    "baseline": case("baseline"),
    "winner": case("winner", side=Side(config={"num_workers": 4})),
}


def test_a_finding_the_winner_no_longer_has_is_cured_by_the_knob_that_did_it() -> None:
    (found,) = judge_by([Told({"baseline": [finding(0.05)]}, knob="num_workers")], CASES).findings
    assert (found.cured, found.how_cured, found.side, found.cost_s) == (
        True,
        "by num_workers=4",
        "baseline",
        0.05,
    )


def test_without_a_knob_of_the_winner_nothing_is_claimed_to_have_done_it() -> None:
    (found,) = judge_by([Told({"baseline": [finding(0.05)]}, knob="compile_mode")], CASES).findings
    assert found.cured
    assert found.how_cured == "below the threshold after tuning"


@pytest.mark.parametrize(("left_s", "cured"), [(0.009, True), (0.011, False)])
def test_a_small_rest_counts_as_cured(left_s: float, cured: bool) -> None:
    (found,) = judge_by(
        [Told({"baseline": [finding(0.05)], "winner": [finding(left_s)]})], CASES
    ).findings
    assert found.cured is cured
    assert found.cost_after_s == left_s
    assert found.how_cured == ("9.00 ms per iteration left" if cured else "")


def test_one_that_stays_is_told_once_with_what_it_still_costs() -> None:
    (found,) = judge_by(
        [Told({"baseline": [finding(0.05)], "winner": [finding(0.03)]})], CASES
    ).findings
    assert not found.cured
    assert found.cost_s == 0.05 and found.cost_after_s == 0.03
    assert "After tuning it still costs 30.0 ms per iteration." in found.evidence


def test_one_that_stays_advises_what_would_help_the_tuned_job() -> None:
    """More workers were the advice for the job as it was, and the answer has them."""
    after = replace(finding(0.03), advice="do less work per sample", knob="")
    (found,) = judge_by([Told({"baseline": [finding(0.05)], "winner": [after]})], CASES).findings
    assert (found.advice, found.knob) == ("do less work per sample", "")


def test_findings_at_other_lines_are_other_findings() -> None:
    moved = replace(HERE, line=99)
    found = judge_by(
        [Told({"baseline": [finding(0.05)], "winner": [finding(0.05, moved)]})], CASES
    ).findings
    assert [(f.side, f.cured) for f in found] == [("baseline", True), ("winner", False)]


def test_a_finding_about_the_whole_job_may_move_to_another_line() -> None:
    """Two lines cost about the same, and either may be the costliest."""
    rule = Told({"baseline": [finding(0.05)], "winner": [finding(0.05, replace(HERE, line=99))]})
    rule.one_finding = True  # type: ignore[misc]
    (found,) = judge_by([rule], CASES).findings
    assert not found.cured and found.cost_after_s == 0.05


def test_a_new_one_is_the_winners() -> None:
    (found,) = judge_by([Told({"winner": [finding(0.01)]})], CASES).findings
    assert (found.side, found.cured) == ("winner", False)


def test_what_cannot_be_judged_in_the_winner_is_not_called_cured() -> None:
    (found,) = judge_by(
        [Told({"baseline": [finding(0.05)], "winner": NotJudgeable("no GPU")})], CASES
    ).findings
    assert not found.cured
    assert found.evidence.endswith("Not judged after tuning: no GPU.")


def test_a_rule_that_fails_or_refuses_is_told_with_its_reason_and_sinks_nothing() -> None:
    told = judge_by(
        [
            Told(
                {"baseline": ZeroDivisionError("by zero"), "winner": ZeroDivisionError("by zero")},
                "bad",
            ),
            Told(
                {
                    "baseline": NotJudgeable("there is no GPU"),
                    "winner": NotJudgeable("there is no GPU"),
                },
                "gpu",
            ),
            Told({"baseline": [finding(0.1)]}),
        ],
        CASES,
    )
    assert [(n.rule, n.reason) for n in told.not_judged] == [
        ("bad", "the rule failed: ZeroDivisionError: by zero"),
        ("gpu", "there is no GPU"),
    ]
    assert told.rules == 1
    assert len(told.findings) == 1


def test_the_costliest_comes_first_and_the_unmeasured_last() -> None:
    rules = [
        Told({"baseline": [finding(cost)]}, name)
        for name, cost in (("a", None), ("b", 0.01), ("c", 0.2))
    ]
    assert [f.cost_s for f in judge_by(rules, {"baseline": CASES["baseline"]}).findings] == [
        0.2,
        0.01,
        None,
    ]


@pytest.mark.parametrize(("particular_s", "left_s"), [(0.09, None), (0.04, 0.06)])
def test_one_cause_is_told_once(particular_s: float | None, left_s: float | None) -> None:
    rules = [
        Told({"baseline": [finding(0.1, None, "general")]}, "general"),
        Told({"baseline": [finding(particular_s)]}, "particular", explains=("general",)),
    ]
    told = {f.rule: f for f in judge_by(rules, {"baseline": CASES["baseline"]}).findings}
    assert "one" in told
    if left_s is None:
        assert "general" not in told
    else:
        assert told["general"].cost_s == pytest.approx(left_s)
        assert "40.0 ms of it is reported under another finding." in told["general"].evidence


@pytest.mark.parametrize("place", [None, replace(HERE, line=99), HERE])
def test_what_has_no_cost_hides_nothing_but_its_own_line(place: Place | None) -> None:
    rules = [
        Told({"baseline": [finding(0.1, place, "general")]}, "general"),
        Told({"baseline": [finding(None)]}, "particular", explains=("general",)),
    ]
    told = {f.rule: f for f in judge_by(rules, {"baseline": CASES["baseline"]}).findings}
    assert "one" in told
    if place == HERE:
        assert "general" not in told
    else:
        assert told["general"].cost_s == 0.1
        assert 'Part of it may be due to "One", whose cost is unknown.' in told["general"].evidence


def test_no_side_no_judgement() -> None:
    assert judge({}).rules == 0


def test_names_are_unique_and_explained_rules_exist() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {general for rule in RULES for general in rule.explains} <= set(names)


def test_healthy_sides_get_nothing() -> None:
    told = judge({"baseline": case("baseline"), "winner": case("winner")})
    assert told.findings == ()
    assert told.rules + len(told.not_judged) == len(RULES)
