"""Metrics that a job prints: numbers found in its output by the patterns of job.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    for path in files if searches else ():
        # universal newlines: the carriage returns of a progress bar end lines, too
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                for name, search in searches.items():
                    match = search.search(line[:LONGEST_LINE])
                    if match and len(found[name]) < MOST_VALUES:
                        with suppress(ValueError, TypeError):  # no number, or no group
                            found[name].append(float(match[1]))
    return {name: tuple(values) for name, values in found.items()}
