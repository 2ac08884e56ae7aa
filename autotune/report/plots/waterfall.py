"""Waterfall plot: how the gain builds up, knob by knob, to the confirmed speed-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune import words
from autotune.explain.records import BuildUp
from autotune.report.plots.canvas import MARKS, ON_WHITE, WIDTH_IN, Palette, label, svg, write_png
from autotune.report.text.gains import gain_name
from autotune.results import Result

ROW_IN, FRAME_IN = 0.44, 0.62  # height of one bar with its label, and of the axis
BAR = 0.36  # height of a bar, in rows
LONGEST_LABEL = 40  # characters, about two thirds of the width


def waterfall_svg(result: Result) -> str:
    """The plot as SVG, one bar per step on a common speed-up scale; "" if there are no steps."""
    steps = drawable(result)
    return (
        svg(lambda axes: _draw(axes[0], result, steps, MARKS), "waterfall", size_in=_size(steps))
        if steps
        else ""
    )


def write_waterfall_plot(result: Result, path: Path) -> None:
    """Write the plot as PNG on white, atomically; no file if there are no steps.

    Raises:
        OSError: the directory cannot be written.
    """
    steps = drawable(result)
    if steps:
        write_png(lambda axes: _draw(axes[0], result, steps, ON_WHITE), path, size_in=_size(steps))


def drawable(result: Result) -> list[BuildUp]:
    """The steps with a figure to draw."""
    return [
        step
        for step in result.explanation.build_up
        if words.known(step.cumulative) and step.cumulative > 0
    ]


def _size(steps: list[BuildUp]) -> tuple[float, float]:
    return WIDTH_IN, FRAME_IN + ROW_IN * (len(steps) + 1)


def step_words(result: Result, step: BuildUp) -> str:
    """``num_workers 0 → 2``"""

    def change(knob: str, value: object) -> str:
        name = words.clean(knob, 28)
        return (
            f"{name} {words.value_words(result.baseline[knob])} → {words.value_words(value)}"
            if knob in result.baseline
            else (f"{name}={words.value_words(value)}")
        )

    others = [
        change(name, result.knobs[name]) for name in step.together_with if name in result.knobs
    ]
    return ", ".join([*others, change(step.knob, step.value)])


def _draw(axes: Any, result: Result, steps: list[BuildUp], palette: Palette) -> None:
    highest = max(
        [1.0, *(step.high if words.known(step.high) else step.cumulative for step in steps)]
    )
    lowest = min([1.0, *(step.low if words.known(step.low) else step.cumulative for step in steps)])
    left, right = (
        (0.0, highest * 1.04) if lowest < 0.5 or highest > 1.5 else (lowest - 0.1, highest + 0.02)
    )
    rows = len(steps) + 1

    def write_row(row: int, name: str, figure: str, weight: str = "normal") -> None:
        """Write the text above a bar: its name at the left, its figure at the right."""
        more = {"fontsize": 10.5, "va": "bottom", "fontweight": weight}
        top = row - BAR / 2 - 0.06
        label(axes, left, top, name, palette.ink, ha="left", **more)
        label(axes, right, top, figure, palette.ink, ha="right", **more)

    axes.barh(0, 1.0 - left, BAR, left=left, color=palette.muted, alpha=0.55)
    write_row(0, "the job as it is", "1×")
    before = 1.0
    for row, step in enumerate(steps, 1):
        last = step.source == "confirmed"
        gained = step.cumulative >= before
        axes.plot(
            [before, before], [row - 1 - BAR / 2, row + BAR / 2], color=palette.muted, linewidth=0.8
        )
        # pale: the speed-up so far; solid: what this step adds
        axes.barh(
            row,
            min(before, step.cumulative) - left,
            BAR,
            left=left,
            color=palette.good if last else palette.muted,
            alpha=0.22,
        )
        axes.barh(
            row,
            abs(step.cumulative - before),
            BAR,
            left=min(before, step.cumulative),
            color=palette.good if gained else palette.warn,
        )
        if words.known(step.low) and words.known(step.high):
            bounds = [step.low, step.high]
            axes.plot(bounds, [row, row], "|-", color=palette.ink, linewidth=1.6, markersize=7)
        name = words.clean(step_words(result, step), LONGEST_LABEL)
        write_row(row, name, words.factor_words(step.cumulative), "bold" if last else "normal")
        before = step.cumulative
    axes.set_xlim(left, right)
    axes.set_ylim(rows - 1 + 0.45, -0.72)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{gain_name(result)} over the baseline")
