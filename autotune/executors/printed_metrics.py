"""Metrics that a job prints: numbers found in its output by the patterns of job.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# characters of a line that are searched: a progress bar without line ends is one long line
LONGEST_LINE = 10_000
MOST_VALUES = 100_000  # of one metric


def read_metrics(
    files: Sequence[Path], patterns: Mapping[str, str]
) -> dict[str, tuple[float, ...]]:
    """Name -> the values that the group of its pattern matched, in the order printed.

    Matches that are not numbers are skipped, and so are files that cannot be read.
    """
    searches = {name: re.compile(pattern) for name, pattern in patterns.items()}
    found: dict[str, list[float]] = {name: [] for name in patterns}
    for line in _lines(files) if searches else ():
        for name, search in searches.items():
            if len(found[name]) < MOST_VALUES and (match := search.search(line)) is not None:
                value = _number(match[1])
                found[name] += [] if value is None else [value]
    return {name: tuple(values) for name, values in found.items()}


def _lines(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="replace", newline=None) as file:
                # universal newlines: the carriage returns of a progress bar end lines, too
                for line in file:
                    yield line[:LONGEST_LINE]
        except OSError:
            continue


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
