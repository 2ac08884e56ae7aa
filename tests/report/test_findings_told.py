"""Findings on the page and in the terminal: places, figures, what the answer cured; text from the
job is escaped.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import HOSTILE, hostile, keep, tuned

from autotune.cli import main
from autotune.explain.records import Explanation
from autotune.report.page.html import render
from autotune.report.result_file import write_result
from autotune.report.sarif import sarif
from autotune.report.terminal.closing import closing_text
from autotune.report.terminal.layout import text_of
from autotune.report.text.findings import findings_group, findings_story
from autotune.results import Result

RUN = Path("autotune-runs/digits-cnn")


def at_home(result: Result) -> Result:
    return replace(result, environment={**result.environment, "workdir": "/home/me/digits"})


def healthy() -> Result:
    return replace(tuned(), explanation=replace(tuned().explanation, findings=(), not_judged=()))


def printed(result: Result) -> str:
    return text_of(lambda console: console.print(findings_group(result)), 200)


def test_the_page_tells_place_cost_evidence_and_cure() -> None:
    page = render(at_home(tuned()), RUN)
    for said in (
        "1 finding left after tuning, 1 fixed by it; 17 rules checked.",
        "Waiting for batches",
        "fixed: by num_workers=2",
        "58.0 ms per iteration (60%)",
        "train.py:41 in main",
        "loader = DataLoader(data)",
        "4.00 ms per iteration after tuning",
        "1 could not be judged here",
        "host and device are one",
        "width:60.0%",
    ):
        assert said in page, said
    assert page.index("total += loss.item()") < page.index("loader = DataLoader(data)"), (
        "what is left comes first"
    )


def test_advice_that_the_search_has_tried_without_adopting_it_says_so() -> None:
    result, advised = tuned(), tuned().explanation.findings[0]
    tried = next(t for t in result.trials if t.log_ratio is not None)
    config = {advised.knob: 4}
    left = replace(
        result,
        knobs={},
        trials=(replace(tried, config=config),),
        explanation=replace(result.explanation, findings=(replace(advised, cured=False),)),
    )
    assert "Knob: num_workers. It was tried and is not part of the answer." in printed(left)
    assert "It was tried" in render(left, RUN)
    assert "It was tried" not in printed(replace(left, trials=()))
    assert "It was tried" not in printed(replace(left, knobs=config))


def test_an_advised_knob_that_does_not_apply_here_is_told_as_such() -> None:
    result, (advised, *_) = tuned(), tuned().explanation.findings
    seen = replace(result.observation, withdrawn={advised.knob: "the job differentiates twice"})
    refused = replace(result, observation=seen)
    said = "Knob: num_workers. It does not apply here: the job differentiates twice."
    assert said in printed(refused) and said not in printed(result)


def test_the_closing_screen_has_a_line_for_each() -> None:
    text = closing_text(at_home(tuned()), RUN)
    assert (
        "The host waits for the device, train.py:77 in main: 4.00 ms per iteration after tuning"
        in text
    )
    assert "fixed: Waiting for batches (58.0 ms per iteration (60%)): by num_workers=2" in text


def test_the_closing_screen_shows_three_at_most() -> None:
    one = tuned().explanation.findings[1]
    many = replace(tuned(), explanation=replace(tuned().explanation, findings=(one,) * 7))
    text = closing_text(many, RUN)
    assert text.count("The host waits") == 3
    assert "and 4 more, in the report" in text


def test_nothing_found_is_said_in_a_line_and_nothing_looked_at_is_not_said() -> None:
    assert "Nothing found (17 rules checked)." in render(healthy(), RUN)
    assert "Nothing found (17 rules checked)." in closing_text(healthy(), RUN)
    bare = replace(keep(), explanation=Explanation())
    assert 'id="findings"' not in render(bare, RUN)
    assert "Findings" not in closing_text(bare, RUN)
    assert "traces: none" in printed(bare)


def test_show_findings_prints_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(at_home(tuned()), tmp_path / "result.json")
    assert main(["show", str(tmp_path), "--findings"]) == 0
    out = capsys.readouterr().out
    for said in (
        "train.py:77 in main    total += loss.item()",
        "Knob: num_workers.",
        "fixed: by num_workers=2",
        "Not judged",
        "The device sits idle: the job computes on the CPU: host and device are one",
    ):
        assert said in out, said
    assert main(["show", str(tmp_path), "--sarif"]) == 0
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    assert {uri_of(r) for r in log["runs"][0]["results"]} == {"train.py"}
    assert main(["show", str(tmp_path), "--findings", "--json"]) == 2
    assert "--findings and --json cannot be combined" in capsys.readouterr().err


def uri_of(result: dict[str, Any]) -> str:
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert isinstance(uri, str)
    return uri


def test_sarif_names_files_as_code_scanning_finds_them(tmp_path: Path) -> None:
    """Relative to the top of the repository, or as a URI."""
    (tmp_path / "a repo" / ".git").mkdir(parents=True)
    (finding, *_) = (f for f in tuned().explanation.findings if f.place is not None)
    found = [
        replace(finding, cured=False, place=replace(finding.place, file=str(tmp_path / name)))
        for name in ("a repo/src/train.py", "lib/b c.py")
    ]
    log = json.loads(sarif(found, "1", tmp_path / "a repo" / "src"))
    uris = [uri_of(result) for result in log["runs"][0]["results"]]
    assert uris == ["src/train.py", f"file://{tmp_path}/lib/b%20c.py"]


def test_hostile_words_reach_neither_terminal_nor_page() -> None:
    for text in (printed(hostile()), closing_text(hostile(), RUN)):
        assert "\x1b" not in text and "\u202e" not in text and "\udc80" not in text
        assert "[bold red]" in text, "shown as it stands, not interpreted"
    page = render(hostile(), RUN)
    section = page[page.index('id="findings"') :]
    assert "<script>alert" not in section
    assert "{{ 2**31 }}" in section
    assert "nan" not in printed(hostile()).split()


def test_a_path_outside_the_jobs_directory_keeps_its_folder() -> None:
    (row, *_) = findings_story(at_home(tuned())).open
    assert row.places[0].where == "train.py:77 in main"
    elsewhere = findings_story(replace(tuned(), environment={"workdir": "/srv"})).open[0]
    assert elsewhere.places[0].where.startswith("digits/train.py:77")
    assert HOSTILE not in elsewhere.places[0].full
