"""How often the kernel's OOM killer has run, and in which processes' cgroups.

    machine           /proc/vmstat, oom_kill                        all kills since boot
    └ memory cgroup   v2 memory.events, v1 memory.oom_control       those of its processes (v2: and of the cgroups below it)

If the machine's count has not changed, the kernel killed nothing. If it has, the victim may be an
unrelated process; the cgroups of our processes tell, if they can be read. A container may hide
them, and the root cgroup has no count.

Source: Linux ``mm/oom_kill.c`` (``__oom_kill_process`` counts for machine and cgroup before it
kills, whichever limit was hit), Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst.
Linux before 4.13 has no such counts.
"""

from __future__ import annotations

import os
from pathlib import Path

# file system type -> file with the count
COUNTERS = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}


class OomKills:
    """Counts OOM kills since this object was created."""

    def __init__(self) -> None:
        self._machine = on_machine()
        self._cgroups: dict[Path, int] = {}
        self._unknown = False  # the cgroup of a watched process cannot be read

    def watch(self, pid: int) -> None:
        """Also count in the cgroup of ``pid``, which its children share."""
        counter = counter_of(pid)
        count = None if counter is None else read(counter)
        if counter is None or count is None:
            self._unknown = True
        else:
            self._cgroups.setdefault(counter, count)

    def since(self) -> int | None:
        """OOM kills in the watched processes' cgroups if known, else on the whole machine.

        None: there is no count.
        """
        now = on_machine()
        kills = None if now is None or self._machine is None else now - self._machine
        if kills == 0 or self._unknown or not self._cgroups:
            return kills
        counts = [(read(counter), before) for counter, before in self._cgroups.items()]
        known = [count - before for count, before in counts if count is not None]
        # a cgroup that was removed with its last process can no longer be read
        return sum(known) if len(known) == len(counts) else kills


def on_machine() -> int | None:
    """OOM kills since boot; None: no count."""
    return read(Path("/proc/vmstat"))


def counter_of(pid: int) -> Path | None:
    """The file with the OOM count of the memory cgroup of ``pid``; None if not visible."""
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
    """Possible count files of the cgroup ``path``, from the mounts of that ``kind`` (proc(5),
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
            if not below.startswith(".."):  # else the cgroup lies outside this mount
                found.append(Path(point, below, COUNTERS[kind]))
    return found


def read(counter: Path) -> int | None:
    try:
        lines = counter.read_text("ascii").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None
