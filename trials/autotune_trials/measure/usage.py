"""What the kernel has counted for this process, all its threads together. About a microsecond a call; zeros where there is no getrusage."""

from __future__ import annotations

from typing import NamedTuple

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows
    getrusage = None  # type: ignore[assignment]


class Usage(NamedTuple):
    """So far, or from one point to another."""

    minor_faults: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    involuntary_switches: int = 0

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.minor_faults - before.minor_faults, self.user_s - before.user_s,
            self.system_s - before.system_s, self.involuntary_switches - before.involuntary_switches,
        )  # fmt: skip


NOTHING = Usage()


def usage() -> Usage:
    """Since the process started."""
    if getrusage is None:
        return NOTHING
    used = getrusage(RUSAGE_SELF)
    return Usage(used.ru_minflt, used.ru_utime, used.ru_stime, used.ru_nivcsw)
