"""How long a job may be silent before it counts as hung.

    sign of life ─── gap ─── sign of life ─── gap ─── sign of life ─── silence …
                                                                       │ its processes work   │ until the full limit
                                                                       │ and they do nothing  │ 50 times the slowest gap

A sign of life is an iteration, or a batch of an evaluation. A job that is silent but works (an
evaluation, a compile, a checkpoint being written) gets the full limit; one whose processes are idle
is judged by its own pace, which exists only once it has trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from autotune_trials.protocol.messages import PROGRESS_S
from autotune_trials.supervisor import procfs

GAPS = 50  # a silence this many times the slowest gap so far is no longer just a slow iteration
SHORTEST_S = 15.0  # shorter is no hang: a disk may spin up, a network share may respond late
# factor on the shortest silence at the job's own settings, where a false hang would end the whole
# run
UNCHANGED = 4
# this many gaps cap both limits if longer than the full limit: 50 gaps of a compile take an hour
SLOW_GAPS = 3
IDLE_CORES = 0.05  # CPU use below which the processes of a session count as idle
MOST_EXTENSIONS = 20  # of the full limit, for a job that does use the CPU


def idle_limit_s(slowest_s: float, full_s: float, shortest_s: float = SHORTEST_S) -> float:
    """Seconds of silence after which an idle job counts as hung.

    Args:
        slowest_s: the longest gap between two of its signs of life so far; 0: none yet.
        full_s: the limit for a job that works.
        shortest_s: lower bound of the result, unless ``full_s`` is shorter.
    """
    if not slowest_s:
        return full_s
    return max(min(shortest_s, full_s), min(GAPS * slowest_s, working_limit_s(slowest_s, full_s)))


def working_limit_s(slowest_s: float, full_s: float) -> float:
    """Seconds of silence after which even a working job is hung; more for slow iterations."""
    return max(full_s, SLOW_GAPS * slowest_s)


class SlowestGap:
    """The slowest gap between two signs of life at the job's own settings, over all sessions."""

    def __init__(self) -> None:
        self.slowest_s = 0.0

    def note(self, gap_s: float) -> None:
        self.slowest_s = max(self.slowest_s, gap_s)


class Work:
    """Whether the processes of one session are working. Checked only twice per silence, since each
    check takes CPU time from the job.
    """

    def __init__(self, processes: Callable[[], Collection[int]]) -> None:
        self._processes = processes
        self._seen: tuple[float, float] | None = None  # (when, CPU seconds so far)

    def begin(self) -> None:
        """Start over after a sign of life."""
        self._seen = None

    def ceased(self, now_s: float, silent_s: float, limit_s: float) -> bool:
        """Whether the processes were idle for at least half of ``limit_s``, at the end of a silence
        longer than ``limit_s``.
        """
        if self._seen is None:
            if silent_s > limit_s / 2:
                self._seen = now_s, self.cpu_s()
            return False
        since_s, before_s = self._seen
        if silent_s <= limit_s or now_s - since_s < limit_s / 2:
            return False
        used_s = self.cpu_s()
        if used_s - before_s < IDLE_CORES * (now_s - since_s) and self._only_waits():
            return True
        self._seen = now_s, used_s
        return False

    def cpu_s(self) -> float:
        """CPU seconds that the session's processes have used, with those of children that have
        ended.
        """
        return sum(stat[3] + stat[4] for stat in self._stats())

    def _only_waits(self) -> bool:
        """Whether no process is running (a busy machine may give it little CPU) or waiting for a
        disk. False if no process can be seen.
        """
        stats = self._stats()
        return bool(stats) and not any(stat[0] in "RD" for stat in stats)

    def _stats(self) -> list[procfs.Stat]:
        stats = map(procfs.stat_of, self._processes())
        return [stat for stat in stats if stat is not None]


class Silence:
    """The silence of the job during one wait for a message.

    Args:
        limit_s: seconds of silence allowed while it works.
        slowest_s: its slowest gap so far; 0.0: none known, or the pace does not count.
        shortest_s: a shorter silence is no hang, however fast its iterations.
        bounded: False if the duration of its work is unknown; the limit is then extended as long as
            it uses the CPU.
        judged: judge it by its pace from the start, else only after its first sign of life.
    """

    def __init__(
        self,
        work: Work,
        limit_s: float,
        *,
        slowest_s: float = 0.0,
        shortest_s: float = SHORTEST_S,
        bounded: bool = True,
        judged: bool = True,
    ) -> None:
        self.slowest_s = slowest_s
        self._work, self._limit_s, self._shortest_s = work, limit_s, shortest_s
        self._bounded, self._judged = bounded, judged
        self._since, self._extensions = time.monotonic(), 0
        self._cpu_s = 0.0 if bounded else work.cpu_s()
        work.begin()

    @property
    def seconds(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._since

    def broken(self, slowest_s: float) -> None:
        """A sign of life arrived, reporting this slowest gap (0.0: the pace does not count)."""
        self._since = time.monotonic()
        self._bounded = True  # the job has trained
        self._judged = self._judged or slowest_s > 0
        self.slowest_s = max(self.slowest_s, slowest_s)
        self._work.begin()

    def too_long(self) -> bool:
        now, silent_s = time.monotonic(), self.seconds
        idle_s = idle_limit_s(self.slowest_s, self._limit_s, self._shortest_s)
        if self._judged and self._work.ceased(now, silent_s, idle_s + PROGRESS_S):
            return True
        if silent_s <= working_limit_s(self.slowest_s, self._limit_s):
            return False
        if self._bounded or self._extensions >= MOST_EXTENSIONS:
            return True
        used_s = self._work.cpu_s()
        if used_s - self._cpu_s < IDLE_CORES * silent_s:
            return True
        self._since, self._cpu_s, self._extensions = now, used_s, self._extensions + 1
        return False
