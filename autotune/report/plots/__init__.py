"""The plots of a result, one file each; :mod:`~autotune.report.plots.canvas` is what they are drawn
on.
"""

from __future__ import annotations

from autotune.report.plots.loss import has_loss_curves, loss_svg, write_loss_plot
from autotune.report.plots.parallel import parallel_svg
from autotune.report.plots.trials import trials_svg
from autotune.report.plots.waterfall import waterfall_svg, write_waterfall_plot

__all__ = [
    "has_loss_curves",
    "loss_svg",
    "parallel_svg",
    "trials_svg",
    "waterfall_svg",
    "write_loss_plot",
    "write_waterfall_plot",
]
