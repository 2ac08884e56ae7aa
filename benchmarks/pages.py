"""Benchmark pages: generated from measurements, followed by handwritten notes, which are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_page(
    path: Path,
    head: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: str,
) -> None:
    """Write ``head``, a table, and the part of ``path`` from the heading ``notes`` on."""
    lines = [
        *head,
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = "".join(old.partition(f"\n{notes}\n")[1:])
    path.write_text("\n".join(lines) + "\n" + kept, encoding="utf-8")
