"""The performance summary in the terminal, on the page, and in MLflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_results import HOSTILE, tuned

from autotune.cli import main
from autotune.explain.records import KernelCounters, KernelTime, NsightFacts, PerfSummary
from autotune.report.page.html import render
from autotune.report.result_file import write_result
from autotune.report.text.summary import result_summary
from autotune.results import Result
from autotune.tracking import Tracker
from autotune.tracking.records import record_result

BEFORE = PerfSummary(
    reader_cost_s=0.058,
    batch_cost_s=0.0988,
    reader_ratio=0.587,
    ips_mean=648.0,
    ips_max=720.0,
    ips_min=401.0,
    ips_variance=2500.0,
    steps=96,
    steps_skipped=12,
    device_utilisation=0.63,
    utilisation_of="of the 2 cores this job may use",
    peak_memory_gib=0.61,
)
AFTER = replace(
    BEFORE,
    reader_cost_s=0.0176,
    batch_cost_s=0.0447,
    reader_ratio=0.394,
    ips_mean=1432.0,
    mfu=0.41,
    mfu_of="of the measured bfloat16 peak",
)


def result(**more: object) -> Result:
    found = tuned()
    sides = found.explanation.sides
    sides = {
        "baseline": replace(sides["baseline"], summary=BEFORE),
        "winner": replace(sides["winner"], summary=AFTER, **more),
    }
    notes = (
        "Nsight Systems was asked for, but is not here; torch.profiler served.",
        "knob importance: too few trials",
    )
    return replace(found, explanation=replace(found.explanation, sides=sides, notes=notes))


def test_show_prints_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "autotune-runs" / "digits").mkdir(parents=True)
    write_result(result(), tmp_path / "autotune-runs" / "digits" / "result.json")
    monkeypatch.chdir(tmp_path)
    assert main(["show", "digits", "--summary"]) == 0
    rows = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert "before after" in rows
    assert "reader cost 58.0 ms 17.6 ms waiting for a batch" in rows
    assert "ips, samples/s 648 1,432 mean" in rows or "ips, samples/s 648 1,430 mean" in rows
    assert "model FLOPs utilization – 41% of the measured bfloat16 peak" in rows
    assert any("Nsight Systems was asked for, but is not here" in row for row in rows) and not any(
        "importance" in row for row in rows
    )


def test_both_sides_are_beside_each_other() -> None:
    table = result_summary(result())
    assert table is not None and table.sides == ("before", "after")
    rows = {row.label: row.cells for row in table.rows}
    assert rows["reader cost"] == ("58.0 ms", "17.6 ms")
    assert rows["steps"] == ("96 (12 skipped)",) * 2
    assert rows["device utilization"] == ("63%", "63%")
    # rows of dashes are left out
    assert "model FLOPs, per step" not in rows
    assert not any("host to device" in label for label in rows)
    assert any("runs on the CPU" in sentence for sentence in table.foot)


def test_one_side_alone_is_simply_now() -> None:
    found = result()
    alone = {"baseline": found.explanation.sides["baseline"]}
    table = result_summary(replace(found, explanation=replace(found.explanation, sides=alone)))
    assert table is not None and table.sides == ("now",)
    assert not any("fresh processes" in sentence for sentence in table.foot)


def test_no_summary_no_table() -> None:
    assert result_summary(tuned()) is None


def test_show_says_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(tuned(), tmp_path / "result.json")
    assert main(["show", str(tmp_path / "result.json"), "--summary"]) == 0
    assert "The run was made with traces: none" in capsys.readouterr().out


def test_the_page_has_it_and_what_nsight_saw(tmp_path: Path) -> None:
    facts = NsightFacts(0.1, 10, 0.05, (KernelTime(HOSTILE, 3, 0.01),), 20, 4e7, 0.01)
    page = render(
        result(nsight_facts=facts, counters=(KernelCounters(HOSTILE, 1e-3, 0.8, 0.4),)), tmp_path
    )
    for words in (
        "Performance summary",
        "58.0 ms",
        "17.6 ms",
        "busy 50% of 100 ms",
        "40 MB copied to the device at 4 GB/s",
        "80% and 40%",
    ):
        assert words in page, words
    assert "<script>alert" not in page and "Nsight Systems was asked for" in page
    assert "Performance summary" not in render(tuned(), tmp_path)


def test_mlflow_gets_it_under_fixed_keys(tmp_path: Path) -> None:
    told: dict[str, float] = {}

    class Listening(Tracker):
        def study_metrics(self, metrics):  # type: ignore[no-untyped-def]
            told.update(metrics)

    record_result(Listening(), result(), tmp_path)
    assert (
        told["summary/baseline/reader_cost_ms"] == pytest.approx(58.0)
        and told["summary/winner/mfu"] == 0.41
    )
    assert "summary/baseline/mfu" not in told
