"""The plots of a result: SVG for the page, PNG for the tracking server.

An SVG is drawn in colours that are marks only and then given the page's own CSS variables, so that one picture serves
the light and the dark page. No text of the job is drawn: matplotlib reads ``$…$`` as mathematics and may raise.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.report import words
from autotune.results import Result, Trial


@dataclass(frozen=True)
class Palette:
    """The colours of a plot, by their role on the page."""

    ink: str
    muted: str
    line: str
    accent: str
    good: str
    warn: str
    bad: str


# Marks, each to become the page's variable of the same name. Nothing else may be drawn in them.
MARKS = Palette("#010101", "#020202", "#030303", "#040404", "#050505", "#060606", "#070707")
ON_WHITE = Palette("#1c2430", "#5b6675", "#d8dee6", "#2563c9", "#0f7b4f", "#a15c00", "#b42331")
LOSS_PANELS = (2, 1)  # the curves, and below them their difference, which the curves cannot show
STATES = {"complete": ("accent", "o"), "pruned": ("muted", "v"), "infeasible": ("warn", "X"), "failed": ("bad", "X")}
SIZE_IN = (4.9, 3.6)  # small, so that on a phone the text is as large as the page's


def trials_svg(result: Result) -> str:
    """Speed-up of each trial in the order they were run, by state; "" if there was none."""
    return _svg(lambda axes: _draw_trials(axes[0], result, MARKS), "trials", (1,)) if result.trials else ""


def loss_svg(result: Result) -> str:
    """Loss before and after with the margin; "" if no curve was recorded."""
    return _svg(lambda axes: _draw_loss(axes[0], axes[1], result, MARKS), "loss", LOSS_PANELS) if has_loss_curves(result) else ""


def has_loss_curves(result: Result) -> bool:
    return any(words.known(v) for v in result.loss.baseline_curve.values())


def write_loss_plot(result: Result, path: Path) -> None:
    """Write the loss plot as PNG, on white; without curves it says so. Published by rename.

    Raises:
        OSError: the directory cannot be written.
    """
    shown = has_loss_curves(result)
    figure, axes = _figure(ON_WHITE, LOSS_PANELS if shown else (1,))
    if shown:
        _draw_loss(axes[0], axes[1], result, ON_WHITE)
    else:
        axes[0].set_axis_off()
        axes[0].text(0.5, 0.5, "no loss curve was recorded", ha="center", va="center", color=ON_WHITE.muted)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white", transparent=False)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(buffer.getvalue())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _figure(palette: Palette, heights: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """A figure of panels one above the other, without pyplot: no global state, no display, safe in any thread."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    panels = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes in panels:
        axes.patch.set_alpha(0)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(palette.line)
        axes.tick_params(colors=palette.muted, labelsize=9, length=3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set_color(palette.muted)
            axis.label.set_size(9.5)
        axes.grid(axis="y", color=palette.line, linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, list(panels)


def _svg(draw: Callable[[list[Any]], None], name: str, heights: tuple[int, ...]) -> str:
    """Draw, and return an ``<svg>`` element in the page's colours, with ids of its own."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": f"autotune-{name}", "path.simplify": True}):
        figure, axes = _figure(MARKS, heights)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', lambda m: f"{m[1]}{name}-", text)
    text = re.sub(r"font-family:[^;\"]*", "font-family: inherit", text)
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)  # it would apply to the whole page
    for role, mark in asdict(MARKS).items():
        text = text.replace(mark, f"var(--{role})")
    return text


def _legend(axes: Any, palette: Palette) -> None:
    entries: dict[str, Any] = {}
    for panel in axes.figure.axes:
        entries |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    labels = list(dict.fromkeys(label for label in (*STATES, *entries) if label in entries))
    legend = axes.figure.legend([entries[label] for label in labels], labels, loc="outside upper left", ncols=3, frameon=False,
                                 fontsize=9, handletextpad=0.4, columnspacing=1.2)
    for text in legend.get_texts():
        text.set_color(palette.ink)


def _draw_trials(axes: Any, result: Result, palette: Palette) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.axhline(1.0, color=palette.ink, linewidth=1)
    confirmation = result.confirmation
    if confirmation is not None and confirmation.blocks > 0 and words.measured(confirmation.speedup):
        confirmed = confirmation.speedup
        axes.axhspan(confirmed.low, confirmed.high, color=palette.good, alpha=0.16, linewidth=0, label="finalist, fresh processes")
    states = list(dict.fromkeys(t.state for t in result.trials))
    unmeasured: list[tuple[Trial, str, str]] = []
    for state in states:
        role, marker = STATES.get(state, ("muted", "s"))
        color = getattr(palette, role)
        of_state = [t for t in result.trials if t.state == state]
        shown = [(t.number, i) for t in of_state if (i := words.trial_interval(t)) is not None and words.known(i.estimate)]
        unmeasured += [(t, color, marker) for t in of_state if words.trial_interval(t) is None]
        label = state if state in STATES else "other state"
        if shown:
            x = [number for number, _ in shown]
            y = [i.estimate for _, i in shown]
            # an infinite or missing bound is drawn as no bar rather than as a bar over the whole picture
            low = [max(i.estimate - i.low, 0.0) if words.known(i.low) else 0.0 for _, i in shown]
            high = [max(i.high - i.estimate, 0.0) if words.known(i.high) else 0.0 for _, i in shown]
            axes.errorbar(x, y, [low, high], fmt=marker, color=color, markersize=5, elinewidth=1.1, label=label)
        else:
            axes.plot([], [], marker, color=color, markersize=5, label=label)
    for trial, color, marker in unmeasured:  # on the lower edge: they ran, but have no speed-up
        axes.plot([trial.number], [0.03], marker, color=color, markersize=6, transform=axes.get_xaxis_transform(), clip_on=False)
    axes.set_xlabel("trial, in the order run")
    axes.set_ylabel("speed-up over the baseline")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.margins(x=0.06, y=0.14)
    _legend(axes, palette)


def _draw_loss(curves: Any, differences: Any, result: Result, palette: Palette) -> None:
    import numpy as np

    loss = result.loss
    x, y = _points(loss.baseline_curve, drop=True)
    curves.plot(x, y, color=palette.ink, linewidth=1.5, label="baseline")
    after_x, after_y = _points(loss.candidate_curve, drop=False)
    if after_x:
        curves.plot(after_x, after_y, color=palette.accent, linewidth=1.5, linestyle=(0, (4, 2)), label="with the change")
        inside = [(at, v) for at, v in zip(after_x, after_y, strict=True) if x[0] <= at <= x[-1]]
        # a changed batch size puts the two curves on different sample counts: compare with the line between the points
        difference = [v - float(np.interp(at, x, y)) for at, v in inside]
        differences.plot([at for at, _ in inside], difference, color=palette.accent, linewidth=1.3)
    if loss.margin is not None and words.known(loss.margin):
        differences.axhspan(-loss.margin, loss.margin, color=palette.good, alpha=0.18, linewidth=0, label="margin")
    differences.axhline(0, color=palette.ink, linewidth=1)
    unit = result.observation.job.sample_unit
    differences.set_xlabel(f"{unit if unit in ('samples', 'iterations') else 'samples'} consumed")
    differences.set_ylabel("difference")
    curves.set_ylabel("loss")
    curves.margins(x=0.02)
    _legend(curves, palette)


def _points(curve: Mapping[int, float], drop: bool) -> tuple[list[int], list[float]]:
    """A curve in order; points that are not finite are left out or become a gap."""
    points = [(at, v if words.known(v) else math.nan) for at, v in sorted(curve.items()) if words.known(v) or not drop]
    return [at for at, _ in points], [v for _, v in points]
