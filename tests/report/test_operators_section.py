"""The operators on the page and in the terminal: the same figures, the verdicts, and the peaks they
are compared with.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from sample_results import HOSTILE, explanation, hostile, operator, tuned
from test_report_page import Page

from autotune.cli import main
from autotune.explain.records import Explanation, Peak, Side
from autotune.explain.roofline import judged
from autotune.report.page.html import render
from autotune.report.plots.roofline import below_roof, roofline_svg, write_roofline_plot
from autotune.report.result_file import write_result
from autotune.report.text.operators import TOP, peak_rows, section

PEAKS = (
    Peak("float32", 100e9, 120e9, "a data sheet"),
    Peak("memory", 20e9),
    Peak("dispatch", 1.5e-6),
)


def judged_explanation() -> Explanation:
    """Seven operators before, two after, with all kinds of verdict."""
    work = {
        "aten::mm": (2e9, 4e6),
        "aten::copy_": (0.0, 40e6),
        "aten::mul": (4.0, 48.0),
        "aten::sort": (None, None),
    }
    names = [*work, "aten::mm", "aten::copy_", "aten::mul"]
    rows = [
        replace(
            operator(
                name,
                self_time_s=0.2 / (i + 1) * (1e-4 if name == "aten::mul" else 1),
                share=0.3 / (i + 1),
                calls=6,
            ),
            dtypes="float32 float32",
            shapes=f"[{i}, 8]",
            flops=work[name][0],
            nbytes=work[name][1],
            why="" if work[name][0] is not None else "how much it computes is not known here",
            intensity=(work[name][0] or 0) / (work[name][1] or 1),
        )
        for i, name in enumerate(names)
    ]
    before = judged(rows, {p.name: p.value for p in PEAKS})
    sides = {
        "baseline": Side(
            trace="traces/baseline.json.gz",
            stacks="traces/baseline-stacks.json.gz",
            table="traces/baseline-operators.csv",
            operators=before,
        ),
        "winner": Side(operators=before[:2]),
    }
    return Explanation(sides=sides, peaks=PEAKS)


def test_the_page_shows_the_costliest_with_verdict_figures_and_files() -> None:
    page = Page(render(replace(tuned(), explanation=judged_explanation()), Path("autotune-runs/x")))
    text = page.text[page.text.index("Operators") :]
    for said in (
        "compute-bound",
        "memory-bound",
        "overhead-bound",
        "not judged",
        "% of the roof",
        "how much it computes is not known here",
        "traces/baseline-operators.csv",
        "traces/baseline-stacks.json.gz",
        "100 GFLOP/s",
        "120 GFLOP/s (83% reached)",
        "20 GB/s",
        "1.50 µs",
    ):
        assert said in text, said
    assert "[4, 8]" in text and "[5, 8]" not in text  # five of each side
    assert "2 more in traces/baseline-operators.csv" in re.sub(r"\s+", " ", text)


def test_the_plot_has_both_runs_and_follows_the_pages_colours() -> None:
    svg = roofline_svg(judged_explanation().sides, PEAKS)
    assert svg.startswith("<svg") and "before" in svg and "after" in svg and "FLOP/byte" in svg
    assert not re.search(r"#0[0-9]0[0-9]0[0-9]\b", svg) and "var(--accent)" in svg


def test_a_side_of_a_profile_is_named_in_the_plot() -> None:
    side = judged_explanation().sides["baseline"]
    assert "with $a_b=1" in roofline_svg({"unchanged": side, "with $a_b=1$": side}, PEAKS)


def test_nothing_is_said_or_drawn_to_be_above_the_roof() -> None:
    """An operator whose data are cached, a convolution with fewer products, and a device that
    exceeds its vendor's figure.
    """
    work = {"aten::add": (1e6, 40e6), "aten::mkldnn_convolution": (4e9, 4e6)}
    rows = [
        replace(
            operator(name, self_time_s=6e-3, share=0.5, calls=6),
            dtypes="float32 float32",
            flops=flops,
            nbytes=nbytes,
            intensity=flops / nbytes,
        )
        for name, (flops, nbytes) in work.items()
    ]
    low = {"float32": 1e12, "memory": 1e10, "dispatch": 1e-6}
    peaks = (Peak("float32", 1e12, 0.8e12, "a data sheet"), Peak("memory", 1e10))
    before = judged(rows, low)
    assert [row.above for row in before] == ["cache", "fewer products"]
    found = Explanation(sides={"baseline": Side(operators=before)}, peaks=peaks)
    text = Page(render(replace(tuned(), explanation=found), Path("autotune-runs/x"))).text
    text = text[text.index("Operators") :]
    assert (
        "runs from cache" in text
        and "fewer multiplications than counted" in text
        and "(100% reached)" in text
    )
    assert not [share for share in re.findall(r"(\d+)%", text) if int(share) > 100]
    assert [below_roof(row, low) for row in before] == pytest.approx(
        [1e10 * rows[0].intensity, 1e12]
    )


def test_without_peaks_there_is_a_table_and_no_plot(tmp_path: Path) -> None:
    bare = replace(judged_explanation(), peaks=())
    found = section(bare)
    assert (
        found is not None
        and found["svg"] == ""
        and found["peaks"] == []
        and len(found["sides"][0]["rows"]) == TOP
    )
    write_roofline_plot(bare.sides, (), tmp_path / "roofline.png")
    assert not list(tmp_path.iterdir())
    assert section(Explanation()) is None
    assert (
        "Operators" not in Page(render(replace(tuned(), explanation=Explanation()), Path("x"))).text
    )


def test_the_plot_for_the_tracking_server_is_a_picture(tmp_path: Path) -> None:
    write_roofline_plot(judged_explanation().sides, PEAKS, tmp_path / "roofline.png")
    assert [p.name for p in tmp_path.iterdir()] == ["roofline.png"] and (
        tmp_path / "roofline.png"
    ).read_bytes().startswith(b"\x89PNG")


def test_a_peak_without_a_vendors_figure_says_so() -> None:
    rows = {row["name"]: row for row in peak_rows(PEAKS)}
    assert (
        rows["memory"]["vendor"] == "unknown" and rows["float32 matmul"]["source"] == "a data sheet"
    )


def test_show_prints_the_same_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, result in {
        "new": replace(tuned(), explanation=judged_explanation()),
        "old": replace(tuned(), explanation=explanation()),
        "none": replace(tuned(), explanation=Explanation()),
        "hostile": hostile(),
    }.items():
        (tmp_path / "autotune-runs" / name).mkdir(parents=True)
        write_result(result, tmp_path / "autotune-runs" / name / "result.json")
    assert main(["show", "new", "--operators"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for word in (
        "before: the 5 operators",
        "after: the 2 operators",
        "compute-bound",
        "autotune-runs/new/traces/baseline-operators.csv",
        "float32 matmul: 100 GFLOP/s measured here, vendor 120 GFLOP/s (83% reached)",
    ):
        assert word in said, word
    assert main(["show", "old", "--operators"]) == 0
    assert "aten::convolution_backward" in capsys.readouterr().out
    assert main(["show", "none", "--operators"]) == 0
    assert "could not be profiled" in capsys.readouterr().out
    assert main(["show", "hostile", "--operators"]) == 0
    assert "\x1b" not in capsys.readouterr().out and HOSTILE
    assert main(["show", "new", "--operators", "--json"]) == 2
    assert "--operators and --json cannot be combined" in capsys.readouterr().err
