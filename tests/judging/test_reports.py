"""What a judgement tells a CI: exit codes, JUnit XML, SARIF, Markdown, JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.errors import InputError
from autotune.explain.records import Finding, Operator, Place
from autotune.explain.records import Side as Profiled
from autotune.judging.conditions import FAILED, PASSED, UNDECIDED, exit_code, parse_condition
from autotune.judging.records import Judgement, SideRecord
from autotune.judging.reports import junit
from autotune.judging.run import load_judgement
from autotune.judging.shown import headline, markdown
from autotune.report.result_file import json_text
from autotune.report.sarif import sarif
from autotune.results import Anatomy, Interval, LossVerdict


def operator(name: str, seconds: float) -> Operator:
    return Operator(name, "", "", 10, seconds, 0.5, seconds, seconds / 10, 0.0, seconds)


def side(name: str, seconds: float) -> SideRecord:
    phases = {"data": 0.2 * seconds, "forward": 0.8 * seconds}
    parts = Anatomy(
        phases, seconds, seconds, seconds, seconds, 32 / seconds, 0.0, seconds, 0.0, 60, 10
    )
    profiled = Profiled(operators=(operator("aten::mm", 10 * seconds),), profiled_steps=10)
    return SideRecord(name, f"commit-{name}", "python train.py", "/job", parts, 0.5, profiled)


FINDING = Finding(
    "device-sync",
    "A value is read in every step",
    "B",
    "loss.item() waits.",
    "Read it less often.",
    cost_s=0.002,
    place=Place("train|me.py", 41),
)
SLOWER = Judgement(
    "slower",
    "0.950× (0.940 to 0.960) after 13 pairs",
    Interval(0.95, 0.94, 0.96),
    13,
    0.02,
    "unchanged",
    LossVerdict("unchanged", "the losses of 240 steps are bit-identical", 1, 240),
    (side("A", 0.01), replace(side("B", 0.0105), findings=(FINDING,))),
    {"machine": {"cpu_model": "a CPU"}},
    90.0,
)
OPEN = replace(SLOWER, speed="undecided", speedup=Interval(0.99, 0.9, 1.1))
NEARLY = replace(SLOWER, speed="undecided", speedup=Interval(1.0, 0.985, 1.03))
CHANGED = replace(SLOWER, speed="same", loss="changed")


@pytest.mark.parametrize(
    ("it", "conditions", "code"),
    [
        (SLOWER, [], PASSED),
        (SLOWER, ["slower"], FAILED),
        (SLOWER, ["slower:5%"], FAILED),
        (SLOWER, ["slower:0.06"], PASSED),
        (SLOWER, ["faster", "loss-changed"], PASSED),
        (SLOWER, ["not-same"], FAILED),
        (OPEN, [], UNDECIDED),
        (OPEN, ["slower:2%"], UNDECIDED),
        (OPEN, ["loss-changed"], PASSED),
        (NEARLY, ["slower:2%", "loss-changed"], PASSED),
        (NEARLY, ["slower"], UNDECIDED),
        (NEARLY, ["faster:2%"], UNDECIDED),
        (NEARLY, ["not-same"], UNDECIDED),
        (NEARLY, [], UNDECIDED),
        (CHANGED, ["slower", "loss-changed"], FAILED),
        (replace(OPEN, loss="changed"), ["slower", "loss-changed"], FAILED),
    ],
)
def test_exit_codes(it: Judgement, conditions: list[str], code: int) -> None:
    asked = [parse_condition(text) for text in conditions]
    assert exit_code(it, asked) == code
    assert code == FAILED or ("<error" in junit(it, asked)) == (code == UNDECIDED)


@pytest.mark.parametrize(
    "text", ["slow", "slower:2x", "slower:-1%", "loss-changed:2%", "slower:100%", ""]
)
def test_conditions_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="no such condition"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("it", "conditions", "failed", "errors"),
    [
        (SLOWER, ["slower"], ["speed"], []),
        (CHANGED, ["loss-changed"], ["loss"], []),
        (OPEN, ["slower"], [], ["speed"]),
        (OPEN, ["loss-changed"], [], []),
        (SLOWER, [], [], []),
    ],
)
def test_junit(it: Judgement, conditions: list[str], failed: list[str], errors: list[str]) -> None:
    suite = ElementTree.fromstring(junit(it, [parse_condition(text) for text in conditions]))
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["speed", "loss"]
    assert [c.get("name") for c in cases if c.find("failure") is not None] == failed
    assert [c.get("name") for c in cases if c.find("error") is not None] == errors
    assert (suite.get("failures"), suite.get("errors")) == (str(len(failed)), str(len(errors)))


def test_sarif_has_the_findings_that_have_a_place() -> None:
    unplaced, cured = replace(FINDING, place=None), replace(FINDING, cured=True)
    log = json.loads(sarif([FINDING, unplaced, cured], "1.0"))
    [run] = log["runs"]
    [result] = run["results"]
    assert (
        log["version"] == "2.1.0"
        and result["ruleId"] == run["tool"]["driver"]["rules"][0]["id"] == "device-sync"
    )
    location = result["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "train%7Cme.py"}, "region": {"startLine": 41}}
    assert "2.00 ms per iteration" in result["message"]["text"]


def test_markdown_for_a_pull_request() -> None:
    text = markdown(SLOWER)
    assert text.startswith("### autotune: B is slower: 0.95× (0.94–0.96), loss unchanged")
    assert "| aten::mm | 10.0 ms | 10.5 ms | +500 µs |" in text
    assert "Found in B only" in text and r"train\|me.py:41" in text, (
        "what would end a table cell is escaped"
    )
    assert headline(OPEN).startswith("The speed is undecided")


def test_the_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "judgement.json"
    path.write_text(json_text(SLOWER))
    assert load_judgement(path) == SLOWER
    path.write_text(json_text(SLOWER).replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(InputError, match="schema_version 9"):
        load_judgement(path)


def test_the_documented_workflow_names_the_action_as_github_wants_it() -> None:
    text = (Path(__file__).parents[2] / "docs" / "judge.md").read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert len(used) == 2 and all(re.fullmatch(r"[\w.-]+/[\w.-]+@\w+", name) for name in used)
