"""The comparison of two runs as one self-contained page, in the report's own dress: no script, no
request to any network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune import words
from autotune.report.page.html import axis, page_environment
from autotune.report.terminal import compare as rows
from autotune.report.text import comparison as compared
from autotune.report.text import story
from autotune.report.text.comparison import Comparison
from autotune_trials.paths import publish


def write_comparison(it: Comparison, path: Path) -> None:
    """Write the page (write, flush, rename).

    Raises:
        OSError: ``path`` cannot be written.
    """
    publish(path, render(it))


def render(it: Comparison) -> str:
    """The page as text."""
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
            bars=_bars(it),
            axis=axis(_longest(it)),
            phases=rows.phase_rows(it),
            signed=rows.signed_words,
            finding=rows.finding_words,
        )
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def _sides(it: Comparison) -> list[tuple[str, Any]]:
    return [
        (f"{name} {when}", side)
        for name, result in (("A", it.a), ("B", it.b))
        for when, side in zip(("before", "after"), compared.ends(result), strict=True)
    ]


def _longest(it: Comparison) -> float:
    return max(
        (
            sum(max(s, 0.0) for s in side.phases_s.values() if words.known(s))
            for _, side in _sides(it)
        ),
        default=0.0,
    )


def _bars(it: Comparison) -> list[dict[str, Any]]:
    """Four stacked bars on one scale."""
    whole_s = _longest(it)
    return (
        []
        if whole_s <= 0
        else [
            {
                "name": name,
                "total": words.duration_words(side.iteration_s),
                "parts": [
                    {
                        "width": round(100 * s / whole_s, 3),
                        "phase": p if p in story.PHASE_WORDS else "other",
                        "title": (
                            f"{story.PHASE_WORDS.get(p, words.clean(p, 40))}:"
                            f" {words.duration_words(s)}"
                        ),
                    }
                    for p, s in side.phases_s.items()
                    if words.known(s) and s > 0
                ],
            }
            for name, side in _sides(it)
        ]
    )
