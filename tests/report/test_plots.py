"""What the plots and the timeline strip show, read back from the drawings."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sample_results import HOSTILE, samples, tuned

from autotune.explain.records import BuildUp, Side, Span
from autotune.report.plots.parallel import classes, parallel_svg, varied
from autotune.report.plots.trials import trials_svg
from autotune.report.plots.waterfall import waterfall_svg, write_waterfall_plot
from autotune.report.text import timeline
from autotune.report.text.gains import build_up_words
from autotune.results import Result, Trial


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def with_steps(*steps: BuildUp) -> Result:
    return replace(tuned(), explanation=replace(tuned().explanation, build_up=steps))


def test_waterfall_has_a_bar_a_step_and_its_words() -> None:
    said = texts(waterfall_svg(tuned()))
    assert [t for t in said if "×" in t] == ["1×", "1.66×", "2.10×"]
    assert [t for t in said if "→" in t] == ["num_workers 0 → 2", "amp_dtype off → bfloat16"]


def test_waterfall_with_one_knob_is_two_bars() -> None:
    said = texts(waterfall_svg(with_steps(BuildUp("num_workers", 2, 1.5, 1.4, 1.6, "confirmed"))))
    assert [t for t in said if "×" in t] == ["1×", "1.50×"]


def test_waterfall_survives_steps_without_bounds_and_steps_that_lose() -> None:
    svg = waterfall_svg(
        with_steps(
            BuildUp("num_workers", 2, 1.9, math.nan, math.inf),
            BuildUp("amp_dtype", "bfloat16", 1.7, 1.6, 1.8, "confirmed", ("prefetch_factor",)),
        )
    )
    assert [t for t in texts(svg) if "×" in t] == ["1×", "1.90×", "1.70×"]
    assert "var(--warn)" in svg, "a step that loses is not drawn as a gain"
    assert waterfall_svg(with_steps(BuildUp("num_workers", 2, math.nan, math.nan, math.nan))) == ""
    assert waterfall_svg(samples()["keep"]) == ""


def test_waterfall_says_where_its_steps_come_from() -> None:
    assert "only indicative" in build_up_words(tuned())
    assert "only indicative" not in build_up_words(
        with_steps(BuildUp("num_workers", 2, 1.5, 1.4, 1.6, "confirmed"))
    )


def test_waterfall_as_a_picture(tmp_path: Path) -> None:
    import matplotlib.image

    write_waterfall_plot(tuned(), tmp_path / "waterfall.png")
    picture = matplotlib.image.imread(tmp_path / "waterfall.png")
    assert picture[0, 0, :3] == pytest.approx([1, 1, 1])
    assert picture[..., :3].min() < 0.5
    write_waterfall_plot(samples()["keep"], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_parallel_coordinates_have_an_axis_a_varied_knob() -> None:
    said = texts(parallel_svg(tuned()))
    for knob in ("num_workers", "amp_dtype", "prefetch_factor", "channels_last", "speed-up"):
        assert knob in said
    assert "compile_mode" not in said, "it was tried, but never measured with another value"


def test_parallel_coordinates_draw_a_line_a_measured_trial() -> None:
    result = tuned()
    svg = parallel_svg(result)
    measured = [t for t in result.trials if t.speedup is not None]
    knobs = varied(result, measured)
    lines = [
        d
        for d in re.findall(r'<path d="([^"]+)"', svg)
        if d.count("L") == len(knobs) and "z" not in d
    ]
    assert len(lines) == len(measured)


def test_speed_classes_cover_every_trial() -> None:
    from autotune.report.plots.canvas import MARKS

    trials = [
        Trial(n, {}, "complete", -math.log(s), 0.01, 2)
        for n, s in enumerate((0.5, 1.0, 1.01, 2.0, 4.0))
    ]
    scale = classes(trials, MARKS)
    found = [next(said for bound, _, said in scale if (t.speedup or 0) <= bound) for t in trials]
    assert found[0] == "not faster"
    assert found[-1] == "2.52–4.00×"
    assert classes(trials[:2], MARKS)[0][2] == "not faster"


@pytest.mark.parametrize("draw", [waterfall_svg, parallel_svg, trials_svg])
def test_hostile_names_are_drawn_as_words(draw: object) -> None:
    knob = "opt:" + HOSTILE
    base = tuned()
    trials = (
        Trial(0, {knob: HOSTILE}, "complete", -0.5, 0.01, 2),
        Trial(1, {knob: "$x_{1$"}, "complete", -0.1, 0.01, 2),
    )
    result = replace(
        base,
        baseline={knob: "$"},
        knobs={knob: HOSTILE},
        trials=trials,
        explanation=replace(
            base.explanation,
            build_up=(BuildUp(knob, HOSTILE, 1.6, 1.5, 1.7, "confirmed", (HOSTILE,)),),
        ),
    )
    svg = draw(result)  # type: ignore[operator]
    assert svg.startswith("<svg")
    assert "<script" not in svg


# -- the timeline strip ----------------------------------------------------------------------------


def side(*spans: Span) -> Result:
    return replace(
        tuned(), explanation=replace(tuned().explanation, sides={"baseline": Side(timeline=spans)})
    )


def test_strips_share_one_scale() -> None:
    before, after = timeline.strips(tuned())
    assert (before["name"], after["name"]) == ("before", "after")
    ends = [
        max(s.x + s.width for lane in strip["lanes"] for s in lane["spans"])
        for strip in (before, after)
    ]
    assert ends[0] == pytest.approx(1000, abs=1)
    assert ends[1] == pytest.approx(
        1000 * (17.6 + 9.1 + 17.4 + 2.1) / (57.1 + 14.0 + 23.5 + 2.1), abs=1
    )
    assert len(before["marks"]) == 2, "three iterations: the second and the third begin with a line"
    assert [lane["name"] for lane in before["lanes"]] == ["phases", "operators"]


def test_a_span_keeps_its_place_and_kind() -> None:
    [strip] = timeline.strips(
        side(
            Span("data", "data", 0.0, 0.06),
            Span("device", "ampere_sgemm_64x64", 0.06, 0.03),
            Span("copy", "Memcpy HtoD", 0.09, 0.01),
        )
    )
    phases, device, copies = strip["lanes"]
    assert [(s.kind, s.x, s.width) for s in phases["spans"]] == [("data", 0.0, 600.0)]
    assert [(s.kind, s.x, s.width) for s in device["spans"]] == [("matrix", 600.0, 300.0)]
    assert [(s.kind, s.x, s.width) for s in copies["spans"]] == [("move", 900.0, 100.0)]
    assert "30.0 ms" in device["spans"][0].title


def test_thousands_of_kernels_become_a_strip_that_can_be_drawn() -> None:
    spans = [Span("device", "elementwise_kernel", k * 1e-5, 0.6e-5) for k in range(20_000)]
    [strip] = timeline.strips(side(*spans, Span("device", "gemm", 0.2, 0.02)))
    [lane] = strip["lanes"]
    assert len(lane["spans"]) <= timeline.MOST_SPANS
    covered = sum(s.width for s in lane["spans"] if s.kind == "rest")
    assert covered == pytest.approx(1000 * 0.2 / 0.22, rel=0.15), (
        "what was merged still covers its time"
    )
    assert [s.width for s in lane["spans"] if s.kind == "matrix"] == pytest.approx(
        [1000 * 0.02 / 0.22], rel=0.01
    )
    assert any(re.match(r"\d+ in ", s.title) for s in lane["spans"])


def test_a_gap_stays_a_gap() -> None:
    [strip] = timeline.strips(side(Span("device", "k", 0.0, 0.01), Span("device", "k", 0.05, 0.01)))
    assert [(s.x, s.width) for s in strip["lanes"][0]["spans"]] == [
        (0.0, pytest.approx(166.67)),
        (pytest.approx(833.33), pytest.approx(166.67)),
    ]


def test_spans_that_make_no_sense_are_left_out() -> None:
    assert (
        timeline.strips(
            side(Span("data", "data", math.nan, 1.0), Span("data", "data", 0.0, math.inf))
        )
        == []
    )
    assert timeline.strips(samples()["keep"]) == []
