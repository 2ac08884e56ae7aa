"""Process information from ``/proc``, signals and prctl. Without ``/proc``, finds no process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

Stat = tuple[str, int, int, float, float]  # see stat_of()
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def stat_of(pid: int) -> Stat | None:
    """(state, parent pid, start time in ticks since boot, own CPU seconds, CPU seconds of reaped
    children) of a process; None if it is gone. A zombie with further threads is not: they still
    close its files, which takes a GPU's driver a while.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name before the last ")" may contain any characters
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    hertz = os.sysconf("SC_CLK_TCK")
    state = fields[0].decode()
    if state == "Z" and int(fields[17]) > 1:
        state = "D"
    own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return state, int(fields[1]), int(fields[19]), own / hertz, waited / hertz


def all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no /proc
        return []


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def all_stats() -> dict[int, Stat]:
    return {pid: stat for pid in all_pids() if (stat := stat_of(pid)) is not None}


def tree(root: int, stats: Mapping[int, Stat]) -> set[int]:
    """``root`` and its descendants, of the processes in ``stats``."""
    children: dict[int, set[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat[1], set()).add(pid)
    found = {root} & stats.keys()
    new = found
    while new:
        new = {child for pid in new for child in children.get(pid, ())} - found
        found = found | new
    return found


def descendants(root: int) -> set[int]:
    """Living descendants of ``root``, without ``root`` itself."""
    stats = all_stats()
    return {pid for pid in tree(root, stats) if pid != root and stats[pid][0] not in "ZX"}


def running(pids: set[int]) -> set[int]:
    """Those of ``pids`` that are alive and not stopped."""
    return {pid for pid in pids if (stat := stat_of(pid)) is not None and stat[0] not in "ZXT"}


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone, or not ours
            pass


def stop(pids: set[int]) -> None:
    """Stop ``pids``, and wait until they are; one that waits for a disk may take longer than we do."""
    send(pids, signal.SIGSTOP)
    patient_until = time.monotonic() + 1.0
    while running(pids) and time.monotonic() < patient_until:
        time.sleep(0.0005)


def find_prctl() -> Any:
    """prctl(2). Call before fork: the child must not load libraries."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl
