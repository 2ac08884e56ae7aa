"""Renders the comparison of two runs as one self-contained page in the style of the report.

No scripts, no network requests.
"""

from __future__ import annotations

from pathlib import Path

from autotune.report.page.html import page_environment, stacked_bars
from autotune.report.terminal import compare as rows
from autotune.report.text import comparison as compared
from autotune.report.text import story
from autotune.report.text.comparison import Comparison
from autotune_trials.paths import write_where_told


def write_comparison(it: Comparison, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: ``path`` cannot be written.
    """
    write_where_told(path, render(it))


def render(it: Comparison) -> str:
    """Return the page's HTML."""
    ends = [
        (f"{name} {when}", side)
        for name, result in (("A", it.a), ("B", it.b))
        for when, side in zip(("before", "after"), compared.ends(result), strict=True)
    ]
    page = (
        page_environment()
        .get_template("compare.html.j2")
        .render(
            it=it,
            runs=list(zip("AB", (it.a, it.b), strict=True)),
            headlines=dict(zip("AB", (story.headline(it.a), story.headline(it.b)), strict=True)),
            speedups=compared.said_of_speedups(it),
            times=compared.said_of_times(it),
            figures=rows.figure_rows(it),
            **stacked_bars(ends),
            phases=rows.phase_rows([side for _, side in ends]),
            operators=[rows.operator_row(operator) for operator in it.operators],
            finding=rows.finding_words,
        )
    )
    return page.encode("utf-8", "replace").decode("utf-8")
