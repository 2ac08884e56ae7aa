"""How often the kernel's OOM killer has run on this machine: ``oom_kill`` in /proc/vmstat.

If the count has not changed, the kernel killed nothing. If it has, the victim may be an unrelated
process; the session's process is then taken for the victim.

Source: Linux ``mm/oom_kill.c`` (``__oom_kill_process`` counts before it kills, whichever limit was
hit). Linux before 4.13 has no such count.
"""

from __future__ import annotations

import re
from pathlib import Path


class OomKills:
    """Counts OOM kills since this object was created."""

    def __init__(self) -> None:
        self._before = on_machine()

    def since(self) -> int | None:
        """OOM kills on the whole machine; None: there is no count."""
        now = on_machine()
        return None if now is None or self._before is None else now - self._before


def on_machine(counters: Path = Path("/proc/vmstat")) -> int | None:
    """OOM kills since boot; None: no count."""
    try:
        found = re.search(r"^oom_kill (\d+)$", counters.read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
