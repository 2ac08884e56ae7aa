"""The plots of a result, one file each, drawn on :mod:`~autotune.report.plots.canvas`."""
