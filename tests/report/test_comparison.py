"""Comparison of two runs: claims follow from both runs' intervals and noise, and runs that cannot
be compared are refused.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from sample_results import HOSTILE, anatomy, hostile, keep, samples, tuned
from test_report_page import Page

from autotune.cli import main
from autotune.explain.records import Explanation, Finding, Side
from autotune.report.page.compare import render
from autotune.report.result_file import load_result, write_result
from autotune.report.sarif import sarif
from autotune.report.terminal.compare import finding_words, phase_rows
from autotune.report.text import comparison as compared
from autotune.report.text import gains
from autotune.report.text.comparison import compare, said_of_speedups, said_of_times
from autotune.results import Interval, Result, RunVerdict
from autotune.words import why_not_profiled
from autotune_trials.protocol.evidence import Place


def finding(
    rule: str, line: int, function: str = "train", side: str = "winner", cured: bool = False
) -> Finding:
    return Finding(
        rule,
        f"what {rule} is",
        side,
        "evidence",
        "advice",
        0.0031,
        Place("/home/me/train.py", line, function),
        cured=cured,
    )


def other() -> Result:
    """The same job with a smaller speed-up, a slower operator and its own findings."""
    result = tuned()
    sides = dict(result.explanation.sides)
    winner = sides["winner"]
    sides["winner"] = replace(
        winner,
        operators=(*winner.operators, replace(winner.operators[0], name="aten::copy_", share=0.2)),
    )
    explanation = replace(
        result.explanation,
        sides=sides,
        rules=3,
        findings=(
            finding("device-sync", 44),
            finding("gc-pauses", 9),
            finding("casts", 5, side="baseline"),
            finding("prints", 6, cured=True),
        ),
    )
    return replace(
        result,
        speedup=Interval(1.71, 1.62, 1.81),
        knobs={"num_workers": 2},
        explanation=explanation,
        confirmation=replace(result.confirmation, anatomy=anatomy(17.6, 14.0, 23.5)),
    )


def first() -> Result:
    result = tuned()
    return replace(
        result,
        explanation=replace(
            result.explanation,
            rules=3,
            findings=(finding("device-sync", 41), finding("tiny-kernels", 7, "step")),
        ),
    )


def test_ratio_of_speedups_holds_both_errors() -> None:
    ratio = compared.ratio_of_speedups(
        Interval(2.0, 1.8, 2.0**2 / 1.8), Interval(3.0, 2.4, 9 / 2.4)
    )
    assert ratio is not None
    assert ratio.estimate == pytest.approx(1.5)
    half = math.hypot(math.log(2 / 1.8), math.log(3 / 2.4))
    assert math.log(ratio.high / ratio.estimate) == pytest.approx(half)
    assert math.log(ratio.estimate / ratio.low) == pytest.approx(half)
    for odd in (Interval(2.0, math.nan, 3.0), Interval(0.0, 1.0, 1.0)):
        assert compared.ratio_of_speedups(odd, Interval(2.0, 1.9, 2.1)) is None


def test_a_noise_that_the_file_lacks_is_said(tmp_path: Path) -> None:
    """result.json has no NaN: an unmeasured value is read back as None."""
    write_result(
        replace(other(), observation=replace(other().observation, noise=math.nan)),
        tmp_path / "result.json",
    )
    said = compared.said_of_times(compared.compare(tuned(), load_result(tmp_path / "result.json")))
    assert said == ["The noise of one of the runs is unknown, so no ratio of their times is given."]


def test_a_phase_that_the_file_lacks_takes_no_time() -> None:
    side = replace(anatomy(57.1, 14.0, 23.5), phases_s={"data": None, "forward": 0.014})
    assert [row[0] for row in phase_rows([side])] == ["forward", "total"]


def test_no_ratio_of_times_without_known_noise() -> None:
    assert compared.ratio_of_rates(100.0, 150.0, 0.02, math.nan) is None
    ratio = compared.ratio_of_rates(100.0, 150.0, 0.03, 0.04)
    assert ratio is not None
    assert (ratio.estimate, ratio.high) == pytest.approx((1.5, 1.5 * math.exp(1.96 * 0.05)))
    bare = replace(other(), observation=replace(other().observation, noise=math.nan))
    assert "no ratio of their times is given" in " ".join(
        compared.said_of_times(compared.compare(first(), bare))
    )


def test_a_difference_within_the_intervals_is_not_called_one() -> None:
    near = replace(other(), speedup=Interval(2.05, 1.90, 2.21))
    assert "Neither run clearly gained more" in compared.said_of_speedups(
        compared.compare(first(), near)
    )
    assert compared.said_of_speedups(compared.compare(first(), other())).startswith("A gained more")
    assert compared.said_of_speedups(compared.compare(other(), first())).startswith("B gained more")


def test_a_baseline_that_moved_is_said_before_any_time() -> None:
    moved = replace(
        other(),
        confirmation=replace(other().confirmation, baseline_anatomy=anatomy(80.0, 20.0, 30.0)),
    )
    said = " ".join(compared.said_of_times(compared.compare(first(), moved)))
    assert "The unchanged job itself ran" in said
    assert "After tuning" not in said


def test_operators_and_findings_that_differ() -> None:
    it = compared.compare(first(), other())
    assert {row.name for row in it.operators} == {"aten::convolution_backward", "aten::copy_"}
    copy = next(row for row in it.operators if row.name == "aten::copy_")
    assert copy.a_s == 0
    assert copy.b_s == pytest.approx(0.2 * anatomy(17.6, 14.0, 23.5).iteration_s)
    assert [f.rule for f in it.only_a] == ["tiny-kernels"], (
        "the sync stands in both: its line moved, its function did not"
    )
    assert [f.rule for f in it.only_b] == ["gc-pauses", "casts"], "what is cured does not stand"
    unjudged = replace(other(), explanation=replace(other().explanation, rules=0, findings=()))
    assert compared.compare(first(), unjudged).only_a == (), (
        "a run nobody looked through lacks nothing"
    )


@pytest.mark.parametrize("name", list(samples()))
def test_every_pair_makes_a_sound_page(name: str) -> None:
    for it in (
        compared.compare(samples()[name], first()),
        compared.compare(keep(), samples()[name]),
    ):
        page = Page(render(it))
        assert "script" not in page.elements
        assert len(page.ids) == len(set(page.ids))
        assert not [r for r in page.references if not r.startswith(("#", "data:"))]


def test_hostile_words_stay_words_on_the_page() -> None:
    odd = hostile()
    odd = replace(
        odd,
        explanation=replace(
            odd.explanation,
            sides={"winner": Side(operators=odd.explanation.sides[HOSTILE].operators)},
        ),
    )
    text = render(compared.compare(odd, odd))
    assert "<script>alert" not in text
    assert "<script>alert('x')</script>" in Page(text).text


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    unlike = other()
    machine = replace(unlike.observation.machine, torch_version="2.12.0", cores=4)
    unlike = replace(
        unlike,
        observation=replace(unlike.observation, machine=machine),
        environment={"command": ["python", "other.py"]},
    )
    for name, result in {"a": first(), "b": other(), "unlike": unlike, "kept": keep()}.items():
        (tmp_path / "autotune-runs" / name).mkdir(parents=True)
        write_result(result, tmp_path / "autotune-runs" / name / "result.json")
    return tmp_path


def test_the_command_prints_and_writes_a_page(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "a", "autotune-runs/b", "--html", "both.html"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "A gained more: B's speed-up is 0.81× (0.74–0.90) that of A.",
        "samples/s after 1,370 1,110",
        "amp_dtype bfloat16 off (unchanged) differ",
        "aten::copy_",
        "gc-pauses at /home/me/train.py:9, 3.10 ms per iteration",
        "page: both.html",
    ):
        assert words in said, words
    page = Page((runs / "both.html").read_text())
    assert "A gained more" in page.text
    assert not list(runs.glob("compare*")), (
        "a page is written where it was asked for, and only then"
    )


def test_a_kept_baseline_has_no_speedup_to_compare(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "kept", "a"]) == 0
    assert "speed-up none 2.10× (1.93–2.29)" in " ".join(capsys.readouterr().out.split())


def test_unlike_runs_are_refused_by_name_of_each_difference(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "a", "unlike"]) == 2
    said = capsys.readouterr().err
    assert said.count("these runs differ") == 1
    for words in (
        "cores: 2 in A, 4 in B",
        "torch: 2.13.0+cpu in A, 2.12.0 in B",
        "command: python train.py --epochs 5 in A, python other.py in B",
        "--anyway",
    ):
        assert words in said, words
    assert main(["compare", "a", "unlike", "--anyway"]) == 0
    assert "These runs differ" in capsys.readouterr().out


def test_wrong_runs_are_answered(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "a/../a"]) == 2
    assert "both are the same run" in capsys.readouterr().err
    assert main(["compare", "a", "nothing-here"]) == 2
    assert "there is no such run" in capsys.readouterr().err
    assert main(["compare", "a", "b", "--html", "no/such/folder/x.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_kept_baseline_is_compared_by_its_fresh_processes_too() -> None:
    """A live session of the same job may be slower than a fresh process."""
    a = tuned()
    assert a.confirmation is not None and a.confirmation.baseline_anatomy is not None
    fresh = a.confirmation.baseline_anatomy
    live = replace(fresh, samples_per_s=fresh.samples_per_s / 1.08)
    a = replace(a, observation=replace(a.observation, anatomy=live, noise=0.01))
    kept = replace(a.confirmation, adopted=False, speedup=Interval(1.0, 0.98, 1.02))
    b = replace(
        a, verdict=RunVerdict.KEEP_BASELINE, knobs={}, speedup=Interval(1, 1, 1), confirmation=kept
    )
    found = compare(a, b).baselines
    assert found is not None and found.estimate == pytest.approx(1.0)


def test_energy_is_not_called_speed() -> None:
    result = tuned()
    result = replace(result, environment={**result.environment, "objective": "energy"})
    assert "energy saving" in gains.build_up_words(result)
    assert "speed-up" not in said_of_speedups(compare(result, result))


def test_what_a_finding_costs_after_tuning_is_its_cost() -> None:
    finding = Finding(
        "device-sync",
        "A value is read",
        "baseline",
        "After tuning it still costs 14.0 ms per iteration.",
        "Read it less often.",
        cost_s=0.027,
        cost_after_s=0.014,
        place=Place("/job/train.py", 41),
    )
    assert "14.0 ms" in finding_words(finding) and "27.0 ms" not in finding_words(finding)
    assert "27.0 ms" not in sarif([finding], "1")


def test_why_nothing_was_profiled_is_not_why_knobs_were_not_ranked() -> None:
    notes = ("knob importance: too few trials were measured to tell (2, at least 8 are needed)",)
    assert "traces: none" in why_not_profiled(Explanation(notes=notes))


def test_fresh_processes_and_live_sessions_give_no_ratio() -> None:
    a = tuned()
    b = replace(
        a,
        verdict=RunVerdict.KEEP_BASELINE,
        knobs={},
        speedup=Interval(1, 1, 1),
        confirmation=None,
        observation=replace(a.observation, noise=0.01),
    )
    a = replace(a, observation=replace(a.observation, noise=0.01))
    it = compare(a, b)
    assert it.baselines is None and it.tuned is None
    assert any("live session" in said for said in said_of_times(it))
