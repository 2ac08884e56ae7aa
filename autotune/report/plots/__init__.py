"""The plots of a result, one file each; :mod:`~autotune.report.plots.canvas` is what they are drawn
on.
"""
