"""Machine load during a window, and memory use of the session.

Linux only; zeros elsewhere.

    cpu_pressure   share of the time in which some runnable task waited for a CPU (PSI, /proc/pressure/cpu)
    foreign_load   cores used by processes outside this session, on the CPUs this process may use
    memory         proportional set size of the session's processes (pages shared by forked workers count once)
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from time import perf_counter

from autotune_trials.supervisor.process_tags import MARK_VARIABLE, mark_of
from autotune_trials.supervisor.procfs import all_stats, tree

_TICKS = os.sysconf("SC_CLK_TCK")
# the kernel counts CPU time in ticks of 10 ms: figures over a shorter time are meaningless
SHORTEST_S = 0.25


@dataclass(frozen=True)
class Snapshot:
    at_s: float
    pressure_s: float  # total stall time so far
    busy_s: float  # CPU seconds of all processes so far
    session_s: float  # CPU seconds of the session's processes so far


@dataclass(frozen=True)
class Load:
    cpu_pressure: float
    foreign_load: float
    session_load: float = 0.0  # cores used by this session's own processes


def snapshot() -> Snapshot:
    """The counters now. Takes a few milliseconds: call only at the edges of a window."""
    return Snapshot(perf_counter(), _pressure_s(), _busy_s(), sum(session_processes().values()))


def between(*stretches: tuple[Snapshot, Snapshot]) -> Load:
    """The load over all ``stretches`` together, each a pair of snapshots (start, end)."""

    def total(name: str) -> float:
        return math.fsum(getattr(end, name) - getattr(start, name) for start, end in stretches)

    elapsed_s, session_s = total("at_s"), max(0.0, total("session_s"))
    if elapsed_s < SHORTEST_S:
        return Load(0.0, 0.0)
    pressure = min(1.0, max(0.0, total("pressure_s") / elapsed_s))
    counted = all(end.busy_s for _, end in stretches)
    foreign_s = max(0.0, total("busy_s") - session_s) if counted else 0.0
    return Load(pressure, foreign_s / elapsed_s, session_s / elapsed_s)


def session_processes(own: bool = False) -> dict[int, float]:
    """This session's processes: pid -> CPU seconds, including children it has waited for.

    They are the tree below the topmost ancestor that carries the session's mark; with ``own``, below
    this process.
    """
    stats = all_stats()
    mark, root = os.environ.get(MARK_VARIABLE, ""), os.getpid()
    while mark and not own and root in stats and mark_of(stats[root][1]) == mark:
        root = stats[root][1]
    return {pid: stats[pid][3] + stats[pid][4] for pid in tree(root, stats)}


def resident_gib(own: bool = False) -> float:
    """Memory of :func:`session_processes`, in GiB."""
    return sum(map(_memory_bytes, session_processes(own))) / 2**30


def _memory_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _busy_s() -> float:
    """CPU seconds spent so far on the CPUs this process may use; 0.0 if unknown."""
    try:
        mine = {f"cpu{n}".encode() for n in os.sched_getaffinity(0)}
        total = 0
        with open("/proc/stat", "rb") as file:
            for line in file:
                fields = line.split()
                if fields and fields[0] in mine:
                    user, nice, system, _idle, _wait, interrupt, soft, stolen = (
                        int(f) for f in (*fields[1:9], b"0")[:8]
                    )
                    # stolen: by another virtual machine on the same host
                    total += user + nice + system + interrupt + soft + stolen
        return total / _TICKS
    except (OSError, AttributeError, ValueError):
        return 0.0


def _pressure_s() -> float:
    try:
        with open("/proc/pressure/cpu", "rb") as file:
            return int(file.readline().rpartition(b"total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0
