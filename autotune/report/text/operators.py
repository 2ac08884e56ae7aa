"""The operators of a result as text, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune import words
from autotune.explain.peaks import UNITS
from autotune.explain.records import Explanation, Operator, Peak, Side
from autotune.report.plots.roofline import roofline_svg
from autotune.report.terminal.layout import bare_table
from autotune.words import SIDES, scaled_words

FIGURES = ("self", "share", "total", "calls", "mean", "min", "max")
TOP = 5  # operators per side; the CSV lists all of them
BOUND_WORDS = {
    "compute": "compute-bound",
    "memory": "memory-bound",
    "overhead": "overhead-bound",
    "": "not judged",
}
BEYOND = {
    "cache": "at the roof (runs from cache)",
    "fewer products": "at the roof (fewer multiplications than counted)",
}


def section(explanation: Explanation) -> dict[str, Any] | None:
    """Variables for the page's operator section (``operators.html.j2``); None if not profiled."""
    from markupsafe import Markup

    sides = [
        {
            "name": words.clean(SIDES.get(name, name), 60),
            "rows": [row_words(row) for row in side.operators[:TOP]],
            "more": max(len(side.operators) - TOP, 0),
            "table": words.clean(side.table),
            "trace": words.clean(side.trace),
            "stacks": words.clean(side.stacks),
        }
        for name, side in explanation.sides.items()
        if side.operators
    ]
    if not sides:
        return None
    return {
        "sides": sides,
        "peaks": peak_rows(explanation.peaks),
        "svg": Markup(roofline_svg(explanation.sides, explanation.peaks)),
    }


def row_words(row: Operator) -> dict[str, Any]:
    """One operator as text."""
    verdict = BOUND_WORDS.get(row.bound, row.bound)
    if row.of_roof is not None and row.bound in ("compute", "memory"):
        verdict += (
            f", {BEYOND[row.above]}"
            if row.above in BEYOND
            else f", {100 * row.of_roof:.0f}% of the roof"
        )
    return {
        "name": words.clean(row.name, 120),
        "shapes": words.clean(row.shapes, 200),
        "dtypes": words.clean(_once(row.dtypes), 80),
        "kernels": [words.clean(k, 100) for k in row.kernels],
        "self": words.duration_words(row.self_time_s),
        "share": f"{100 * row.share:.1f}%",
        "width": round(min(max(100 * row.share, 0.0), 100.0), 2),
        "total": words.duration_words(row.total_time_s),
        "calls": f"{row.calls:,.0f}",
        "mean": words.duration_words(row.mean_s),
        "min": words.duration_words(row.min_s),
        "max": words.duration_words(row.max_s),
        "achieved": (
            ""
            if row.achieved is None
            else scaled_words(row.achieved, "FLOP/s" if row.flops else "B/s")
        ),
        "verdict": words.clean(verdict, 80),
        "why": words.clean(row.why, 400),
    }


def peak_rows(peaks: Sequence[Peak]) -> list[dict[str, str]]:
    """Rows of peaks: measured, the vendor's figure with the share reached, and its source."""
    rows = []
    for peak in peaks:
        unit = UNITS.get(peak.name)
        if unit is None:
            rows.append(("an empty call", words.duration_words(peak.value), "", ""))
            continue
        vendor = "unknown"
        if peak.vendor:
            reached = min(100 * peak.value / peak.vendor, 100.0)
            vendor = f"{scaled_words(peak.vendor, unit)} ({reached:.0f}% reached)"
        name = "memory" if peak.name == "memory" else f"{peak.name} matmul"
        measured = scaled_words(peak.value, unit)
        rows.append((name, measured, vendor, words.clean(peak.source, 120)))
    return [dict(zip(("name", "measured", "vendor", "source"), row, strict=True)) for row in rows]


def operator_table(side: Side, figures: Sequence[str]) -> Table:
    """A side's operators that take the most time. ``figures``: columns of :func:`row_words`."""
    table = bare_table(2)
    table.add_column("operator")
    for head in figures:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in map(row_words, side.operators[:TOP]):
        table.add_row(row["name"], *(row[head] for head in figures), row["verdict"])
    return table


def print_operators(console: Console, explanation: Explanation, run_dir: Path) -> None:
    """Print the operators and peaks in the terminal."""
    if not any(side.operators for side in explanation.sides.values()):
        console.print(words.why_not_profiled(explanation))
        return
    for name, side in explanation.sides.items():
        shown = [row_words(row) for row in side.operators[:TOP]]
        who = words.clean(SIDES.get(name, name), 60)
        title = f"{who}: the {len(shown)} operators that take the most time"
        console.print(title, style="bold")
        console.print(operator_table(side, FIGURES))
        for row in shown:
            console.print(
                f"  {row['name']} {row['shapes']}" + (f": {row['why']}" if row["why"] else "")
            )
        if side.table:
            console.print(
                f"  all {len(side.operators)} and more columns: {words.clean(run_dir / side.table)}"
            )
        console.print()
    for row in peak_rows(explanation.peaks):
        vendor = f", vendor {row['vendor']}" if row["vendor"] else ""
        console.print(f"  {row['name']}: {row['measured']} measured here{vendor}")


def _once(dtypes: str) -> str:
    return " ".join(dict.fromkeys(dtypes.split()))
