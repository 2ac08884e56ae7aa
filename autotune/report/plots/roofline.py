"""Roofline plot: FLOP/s against arithmetic intensity, both runs, under the measured roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.explain.peaks import FORMATS
from autotune.explain.records import Operator, Peak, Side
from autotune.explain.roofline import roof_for
from autotune.report.plots.canvas import MARKS, ON_WHITE, Palette, legend, svg, write_png
from autotune.words import SIDES as NAMES
from autotune.words import clean

POINTS = 12  # the costliest operators of each side
SIDES = {"baseline": ("ink", "o"), "winner": ("accent", "D")}


def points(side: Side) -> list[Operator]:
    """The rows to draw: the costliest that have FLOPs, an intensity and an achieved rate."""
    return [row for row in side.operators if row.intensity and row.achieved and row.flops][:POINTS]


def can_draw(sides: Mapping[str, Side], peaks: Sequence[Peak]) -> bool:
    measured = {peak.name for peak in peaks}
    return {"memory", "float32"} <= measured and any(points(side) for side in sides.values())


def roofline_svg(sides: Mapping[str, Side], peaks: Sequence[Peak]) -> str:
    """The plot as SVG in the page's colors; "" if nothing can be drawn."""
    return (
        svg(lambda axes: _draw(axes[0], sides, peaks, MARKS), "roofline")
        if can_draw(sides, peaks)
        else ""
    )


def write_roofline_plot(sides: Mapping[str, Side], peaks: Sequence[Peak], path: Path) -> None:
    """Write the plot as PNG on white, atomically; no file if nothing can be drawn.

    Raises:
        OSError: the directory cannot be written.
    """
    if not can_draw(sides, peaks):
        return
    write_png(lambda axes: _draw(axes[0], sides, peaks, ON_WHITE), path)


def below_roof(row: Operator, measured: Mapping[str, float]) -> float:
    """FLOP/s of ``row``, capped at the roof: operators that work from cache can exceed it."""
    roof = roof_for(row.dtypes, measured, tf32=True)
    achieved = row.achieved or 0.0
    return (
        achieved
        if roof is None
        else min(achieved, roof.flops_per_s, (row.intensity or 0.0) * roof.bytes_per_s)
    )


def _draw(axes: Any, sides: Mapping[str, Side], peaks: Sequence[Peak], palette: Palette) -> None:
    measured = {peak.name: peak.value for peak in peaks}
    drawn = {name: points(side) for name, side in sides.items()}
    used = {d for rows in drawn.values() for row in rows for d in row.dtypes.split()}
    intensities = [row.intensity or 0.0 for rows in drawn.values() for row in rows]
    memory = measured["memory"]
    roofs = [
        f
        for f in FORMATS
        if f in measured and (f == "float32" or f in used or (f == "tf32" and "float32" in used))
    ]
    left, right = (
        min(*intensities, 0.1) / 2,
        2 * max(*intensities, max(measured[f] for f in roofs) / memory),
    )
    for name in roofs:
        peak = measured[name]
        axes.plot(
            [left, peak / memory, right],
            [left * memory / 1e9, peak / 1e9, peak / 1e9],
            color=palette.muted,
            linewidth=1,
        )
        axes.annotate(
            name,
            (right, peak / 1e9),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=palette.muted,
            fontsize=9,
        )
    longest = max((row.self_time_s for rows in drawn.values() for row in rows), default=1.0)
    for name, rows in drawn.items():
        role, marker = SIDES.get(name, ("good", "s"))
        heights = [below_roof(row, measured) / 1e9 for row in rows]
        sizes = [14 + 120 * row.self_time_s / longest for row in rows]
        axes.scatter(
            [row.intensity for row in rows],
            heights,
            s=sizes,
            marker=marker,
            alpha=0.75,
            color=getattr(palette, role),
            linewidths=0,
            label=NAMES.get(name, clean(name, 40)),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.tick_params(which="minor", color=palette.line, labelcolor=palette.muted, labelsize=8)
    axes.set_xlim(left, right)
    axes.set_xlabel("FLOP/byte")
    axes.set_ylabel("GFLOP/s")
    legend(axes, palette)
