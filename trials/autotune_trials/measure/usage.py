"""What the kernel has counted for this process, all its threads together. About a microsecond a call; zeros where there is no getrusage."""

from __future__ import annotations

from typing import Any, NamedTuple

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows
    getrusage = None  # type: ignore[assignment]

Counts = Any  # as the kernel gives them, since the process started; None where there is no getrusage


class Usage(NamedTuple):
    """From one point to another."""

    minor_faults: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    involuntary_switches: int = 0


def counts() -> Counts:
    """By now."""
    return getrusage(RUSAGE_SELF) if getrusage is not None else None


def between(before: Counts, after: Counts) -> Usage:
    if before is None or after is None:
        return Usage()
    return Usage(
        after.ru_minflt - before.ru_minflt,
        after.ru_utime - before.ru_utime,
        after.ru_stime - before.ru_stime,
        after.ru_nivcsw - before.ru_nivcsw,
    )
