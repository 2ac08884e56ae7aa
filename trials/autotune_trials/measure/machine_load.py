"""What else the machine was doing during a window, and what the session holds in memory. Linux;
zeros elsewhere.

    cpu_pressure   share of the time in which some runnable task waited for a CPU (PSI, /proc/pressure/cpu)
    foreign_load   cores used by processes outside this session, on the CPUs this process may use
    memory         proportional set size of the session's processes (pages shared by forked workers count once)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import perf_counter

from autotune_trials.supervisor.process_tags import MARK_VARIABLE

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# the kernel counts CPU time in ticks of 10 ms: over less than this the figures mean nothing
SHORTEST_S = 0.25


@dataclass(frozen=True)
class Snapshot:
    at_s: float
    pressure_s: float  # total stall time so far
    busy_s: float  # CPU seconds of everybody so far
    session_s: float  # CPU seconds of the session's processes so far


@dataclass(frozen=True)
class Load:
    cpu_pressure: float
    foreign_load: float
    session_load: float = 0.0  # cores used by this session's own processes


def snapshot() -> Snapshot:
    """The counters now. A few milliseconds: for the edges of a window only."""
    return Snapshot(
        perf_counter(), _pressure_s(), _busy_s(), sum(p.cpu_s for p in session_processes())
    )


def between(start: Snapshot, end: Snapshot) -> Load:
    """What happened from one snapshot to another."""
    elapsed = end.at_s - start.at_s
    if elapsed < SHORTEST_S:
        return Load(0.0, 0.0)
    pressure = min(1.0, max(0.0, (end.pressure_s - start.pressure_s) / elapsed))
    foreign = max(0.0, (end.busy_s - start.busy_s) - (end.session_s - start.session_s)) / elapsed
    session = max(0.0, end.session_s - start.session_s) / elapsed
    return Load(pressure, foreign if end.busy_s else 0.0, session)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    cpu_s: float  # its own and that of children it has waited for


def session_processes() -> list[Process]:
    """This session's processes: the tree below the topmost ancestor that carries the session's
    mark.
    """
    everyone = _processes()
    root = _root(everyone)
    children: dict[int, list[Process]] = {}
    for process in everyone.values():
        children.setdefault(process.parent, []).append(process)
    found, queue = [], [everyone[root]] if root in everyone else []
    while queue:
        process = queue.pop()
        found.append(process)
        queue += children.get(process.pid, [])
    return found


def resident_gib() -> float:
    """Memory of the session's processes, in GiB."""
    return sum(_memory_bytes(p.pid) for p in session_processes()) / 2**30


def _root(everyone: dict[int, Process]) -> int:
    mark = os.environ.get(MARK_VARIABLE, "")
    pid = os.getpid()
    while mark and pid in everyone:
        parent = everyone[pid].parent
        if not _carries(parent, f"{MARK_VARIABLE}={mark}".encode()):
            break
        pid = parent
    return pid


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def _processes() -> dict[int, Process]:
    found = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                cpu = sum(int(t) for t in fields[11:15]) / _TICKS
                found[int(name)] = Process(int(name), int(fields[1]), cpu)
            except (OSError, IndexError, ValueError):
                continue  # it ended while we looked
    return found


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
                    # stolen: by a neighbour on the same host
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
