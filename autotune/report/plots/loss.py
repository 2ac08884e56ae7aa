"""Loss before and after, and their difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import words
from autotune.report.plots.canvas import MARKS, ON_WHITE, Palette, legend, svg, write_png
from autotune.results import Result

PANELS = (2, 1)  # the curves, and below them their difference, too small to see in the curves


def loss_svg(result: Result) -> str:
    """Loss before and after with the margin; "" if no curve was recorded."""
    return (
        svg(lambda axes: _draw(axes[0], axes[1], result, MARKS), "loss", PANELS)
        if has_loss_curves(result)
        else ""
    )


def has_loss_curves(result: Result) -> bool:
    return any(words.known(v) for v in result.loss.baseline_curve.values())


def write_loss_plot(result: Result, path: Path) -> None:
    """Write the loss plot as PNG on white, atomically; no file if no curve was recorded.

    Raises:
        OSError: the directory cannot be written.
    """
    if has_loss_curves(result):
        write_png(lambda axes: _draw(axes[0], axes[1], result, ON_WHITE), path, PANELS)


def _draw(curves: Any, differences: Any, result: Result, palette: Palette) -> None:
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    loss = result.loss
    x, y = _points(loss.baseline_curve, drop=True)
    curves.plot(x, y, color=palette.ink, linewidth=1.5, label="baseline")
    after_x, after_y = _points(loss.candidate_curve, drop=False)
    if after_x:
        curves.plot(
            after_x,
            after_y,
            color=palette.accent,
            linewidth=1.5,
            linestyle=(0, (4, 2)),
            label="with the change",
        )
        inside = [(at, v) for at, v in zip(after_x, after_y, strict=True) if x[0] <= at <= x[-1]]
        # a different batch size puts the curves at different sample counts: interpolate linearly
        difference = [v - float(np.interp(at, x, y)) for at, v in inside]
        differences.plot([at for at, _ in inside], difference, color=palette.accent, linewidth=1.3)
    if loss.margin is not None and words.known(loss.margin):
        differences.axhspan(
            -loss.margin, loss.margin, color=palette.good, alpha=0.18, linewidth=0, label="margin"
        )
    differences.axhline(0, color=palette.ink, linewidth=1)
    unit = result.observation.job.sample_unit
    differences.set_xlabel(f"{unit if unit in ('samples', 'iterations') else 'samples'} consumed")
    differences.set_ylabel("difference")
    differences.xaxis.set_major_locator(MaxNLocator(5))
    curves.set_ylabel("loss")
    curves.margins(x=0.02)
    legend(curves, palette)


def _points(curve: Mapping[int, float], drop: bool) -> tuple[list[int], list[float]]:
    """A curve sorted by x; non-finite points are dropped (``drop``) or become a gap."""
    points = [
        (at, v if words.known(v) else math.nan)
        for at, v in sorted(curve.items())
        if words.known(v) or not drop
    ]
    return [at for at, _ in points], [v for _, v in points]
