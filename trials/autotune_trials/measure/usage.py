"""What the kernel has counted for this process, all its threads together. About a microsecond a
call; zeros where there is no getrusage.
"""

from __future__ import annotations

from typing import NamedTuple

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows
    getrusage = None  # type: ignore[assignment]


class Usage(NamedTuple):
    """From one point to another."""

    minor_faults: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    involuntary_switches: int = 0


Counts = tuple[int, float, float, int]  # the same since the process started
NOTHING: Counts = (0, 0.0, 0.0, 0)


def counts() -> Counts:
    """By now."""
    if getrusage is None:
        return NOTHING
    used = getrusage(RUSAGE_SELF)
    return used.ru_minflt, used.ru_utime, used.ru_stime, used.ru_nivcsw


def between(before: Counts, after: Counts) -> Usage:
    return Usage(
        after[0] - before[0], after[1] - before[1], after[2] - before[2], after[3] - before[3]
    )
