"""How often the kernel has killed for want of memory, and whose processes.

    machine           /proc/vmstat, oom_kill                        every kill since it started
    └ memory cgroup   v2 memory.events, v1 memory.oom_control       those of its processes (v2: and of the cgroups below it)

Where the machine's count stands still, the kernel killed nobody. Where it moves, the kill may be a
neighbour's: the cgroups of the processes in question know, if they can be read; a container may
hide them, and in a machine's root there is no count.

Source: Linux ``mm/oom_kill.c`` (``__oom_kill_process`` counts for machine and cgroup before it
kills, whosever limit it was), Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst. Before
Linux 4.13 there are no such counts.
"""

from __future__ import annotations

import os
from pathlib import Path

# by the type of the file system
COUNTERS = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}


class OomKills:
    """Since it was made."""

    def __init__(self) -> None:
        self._machine = on_machine()
        self._cgroups: dict[Path, int] = {}
        self._unknown = False  # a process whose cgroup cannot be read

    def watch(self, pid: int) -> None:
        """A process in question: its cgroup counts, and children are born into the same one."""
        counter = counter_of(pid)
        count = None if counter is None else read(counter)
        if counter is None or count is None:
            self._unknown = True
        else:
            self._cgroups.setdefault(counter, count)

    def since(self) -> int | None:
        """Of the processes in question, if their cgroups are known; else of the machine. None:
        nobody counts.
        """
        now = on_machine()
        kills = None if now is None or self._machine is None else now - self._machine
        if kills == 0 or self._unknown or not self._cgroups:
            return kills
        counts = [(read(counter), before) for counter, before in self._cgroups.items()]
        known = [count - before for count, before in counts if count is not None]
        # a cgroup that was removed with its last process tells nothing
        return sum(known) if len(known) == len(counts) else kills


def on_machine() -> int | None:
    """All there were since this machine started."""
    return read(Path("/proc/vmstat"))


def counter_of(pid: int) -> Path | None:
    """The file in which the memory cgroup of ``pid`` counts; None: there is none to be seen."""
    try:
        memberships = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in memberships:
        number, controllers, path = line.split(":", 2)
        kind = "cgroup2" if number == "0" else "cgroup"
        if kind == "cgroup2" or "memory" in controllers.split(","):
            for counter in candidates(mounts, kind, path):
                if read(counter) is not None:
                    return counter
    return None


def candidates(mounts: list[str], kind: str, path: str) -> list[Path]:
    """Where the cgroup ``path`` may lie, by the mounts of that ``kind`` (proc(5),
    /proc/[pid]/mountinfo).
    """
    found = []
    for mount in mounts:
        place, _, system = mount.partition(" - ")
        root, point = place.split()[3:5]
        if system.split()[0] == kind and (
            kind == "cgroup2" or "memory" in system.split()[-1].split(",")
        ):
            below = os.path.relpath(path, root)
            if not below.startswith(".."):  # else it lies outside what is mounted here
                found.append(Path(point, below, COUNTERS[kind]))
    return found


def read(counter: Path) -> int | None:
    try:
        lines = counter.read_text("ascii").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None
