"""Scatter plot of two objectives: every measured configuration, with the Pareto front marked."""

from __future__ import annotations

from typing import Any

from autotune.report.plots.canvas import MARKS, Palette, legend, svg
from autotune.report.text.story import objective_words
from autotune.results import Point, Result


def both_svg(result: Result) -> str:
    """The plot as SVG; "" if the run has only one objective."""
    return svg(lambda axes: _draw(axes[0], result, MARKS), "both") if result.points else ""


def _draw(axes: Any, result: Result, palette: Palette) -> None:
    def marks(points: list[Point], marker: str, color: str, label: str) -> None:
        if points:
            x, y = [p.first for p in points], [p.second for p in points]
            axes.plot(x, y, marker, color=color, markersize=5, label=label)

    best = [p for p in result.points if not p.beaten]
    axes.plot([p.first for p in best], [p.second for p in best], color=palette.accent, linewidth=1)
    marks([p for p in result.points if p.beaten], "o", palette.muted, "another is better in both")
    marks(best, "o", palette.accent, "none is better in both")
    marks([p for p in result.points if not p.config], "s", palette.ink, "the job as it is")
    adopted = [p for p in result.points if p.config and dict(p.config) == dict(result.knobs)]
    marks(adopted, "*", palette.good, "adopted")
    first, second = objective_words(result)
    axes.set_xlabel(first)
    axes.set_ylabel(second)
    axes.margins(0.08)
    legend(axes, palette)
