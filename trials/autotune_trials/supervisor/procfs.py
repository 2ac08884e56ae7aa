"""Process information from ``/proc``, signals and prctl. Elsewhere than Linux, finds no process."""

from __future__ import annotations

import os
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def stat_of(pid: int) -> tuple[str, int, int, float, float] | None:
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
    except OSError:  # no /proc on this system
        return []


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def descendants(root: int) -> set[int]:
    """Living descendants of ``root``, without ``root`` itself."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for pid in all_pids():
        stat = stat_of(pid)
        if stat is not None:
            children.setdefault(stat[1], []).append(pid)
            states[pid] = stat[0]
    found: set[int] = set()
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found:
                found.add(pid)
                queue.append(pid)
    return {pid for pid in found if states[pid] not in "ZX"}


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone, or not ours
            pass


def find_prctl() -> Any:
    """prctl(2), or None if not on Linux. Call before fork: the child must not load libraries."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl
