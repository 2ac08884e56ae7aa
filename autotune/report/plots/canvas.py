"""The canvas shared by all plots: SVG for the page, PNG for the tracking server.

An SVG is drawn in placeholder colors that are then replaced by the page's CSS variables, so one
picture works on both the light and the dark page. Draw text that comes from the job with
:func:`label`: matplotlib otherwise parses ``$…$`` as math and may raise.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune_trials.paths import publish


@dataclass(frozen=True)
class Palette:
    """The colors of a plot, named by role."""

    ink: str
    muted: str
    line: str
    accent: str
    good: str
    warn: str
    bad: str
    scale1: str  # speed-ups, scale1 (smallest) to scale3 (best)
    scale2: str
    scale3: str


# Placeholders: each is replaced by the page's CSS variable of the same name. Use them nowhere else.
MARKS = Palette(
    *"#010101 #020202 #030303 #040404 #050505 #060606 #070707 #010702 #020701 #030702".split()
)
ON_WHITE = Palette(
    *"#1c2430 #5b6675 #d8dee6 #2563c9 #0f7b4f #a15c00 #b42331 #9db7dc #4c86d6 #0f7b4f".split()
)
COLUMNS = 3  # of a legend
WIDTH_IN = 4.4  # small, so that text on a phone is nearly as large as the page's
SIZE_IN = (WIDTH_IN, 3.4)


def figure(
    palette: Palette, heights: tuple[int, ...], size_in: tuple[float, float]
) -> tuple[Any, list[Any]]:
    """A figure with vertically stacked panels.

    Avoids pyplot: no global state, no display needed, safe in any thread.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=size_in, layout="constrained")
    FigureCanvasAgg(drawn)
    drawn.patch.set_alpha(0)
    panels = drawn.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes in panels:
        axes.patch.set_alpha(0)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(palette.line)
        axes.tick_params(colors=palette.muted, labelsize=10, length=3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set_color(palette.muted)
            axis.label.set_size(10.5)
        axes.grid(axis="y", color=palette.line, linewidth=0.7)
        axes.set_axisbelow(True)
    return drawn, list(panels)


def svg(
    draw: Callable[[list[Any]], None],
    name: str,
    heights: tuple[int, ...] = (1,),
    size_in: tuple[float, float] = SIZE_IN,
) -> str:
    """Draw, and return an ``<svg>`` element in the page's colors, ids prefixed with ``name``."""
    from matplotlib import rc_context

    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": f"autotune-{name}", "path.simplify": True}
    ):
        drawn, axes = figure(MARKS, heights, size_in)
        draw(axes)
        buffer = io.StringIO()
        drawn.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', lambda m: f"{m[1]}{name}-", text)
    text = re.sub(r"font-family:[^;\"]*", "font-family: inherit", text)
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    # a <style> inside the SVG would apply to the whole page
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    for role, mark in asdict(MARKS).items():
        text = text.replace(mark, f"var(--{role})")
    return text


def legend(axes: Any, palette: Palette, order: Sequence[str] = ()) -> None:
    """Add one legend above all panels; the labels in ``order`` come first."""
    entries: dict[str, Any] = {}
    for panel in axes.figure.axes:
        entries |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    labels = list(dict.fromkeys(label for label in (*order, *entries) if label in entries))
    # matplotlib fills column by column; this reads row by row
    columns = min(COLUMNS, len(labels)) or 1
    labels = [label for column in range(columns) for label in labels[column::columns]]
    shown = axes.figure.legend(
        [entries[label] for label in labels],
        labels,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=10,
        handletextpad=0.4,
        columnspacing=1.2,
    )
    for text in shown.get_texts():
        text.set_color(palette.ink)
        text.set_parse_math(False)


def write_png(
    draw: Callable[[list[Any]], None],
    path: Path,
    heights: tuple[int, ...] = (1,),
    size_in: tuple[float, float] = SIZE_IN,
) -> None:
    """Draw on white and publish atomically as PNG.

    Raises:
        OSError: the directory cannot be written.
    """
    drawn, axes = figure(ON_WHITE, heights, size_in)
    draw(axes)
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=150, facecolor="white", transparent=False)
    publish(path, buffer.getvalue())


def label(axes: Any, x: float, y: float, text: str, palette_color: str, **more: Any) -> Any:
    """Draw (cleaned) text from the job literally, never parsed as math."""
    return axes.text(x, y, text, color=palette_color, parse_math=False, **more)
