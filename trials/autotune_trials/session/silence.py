"""How long a job may be silent before it is taken for hung.

    sign of life ─── gap ─── sign of life ─── gap ─── sign of life ─── silence …
                                                                       │ its processes work   │ until the full limit
                                                                       │ and they do nothing  │ 50 times the slowest gap

A sign of life is an iteration, or a batch of an evaluation. A job that computes in silence (an
evaluation, a compile, a checkpoint being written) is given the full limit; one whose processes
stand still is judged by its own pace. Until it has trained there is none.
"""

from __future__ import annotations

import time

from autotune_trials.protocol.messages import PROGRESS_S
from autotune_trials.supervisor import process_tags, procfs

GAPS = 50  # silence this many times as long as the slowest gap so far is no slow iteration any more
SHORTEST_S = 15.0  # below this nothing is a hang: a disk that spins up, a share that answers late
# times as long for the job's own settings: what it does there is its own doing, and taking it for
# hung ends the whole run
UNCHANGED = 4
# at most so many gaps, where they are longer than the full limit: 50 of a job's compile would take
# an hour
SLOW_GAPS = 3
IDLE_CORES = 0.05  # CPU use below which the processes of a session do nothing
MOST_EXTENSIONS = 20  # of the full limit, for a job that does use the CPU


def idle_limit_s(slowest_s: float, full_s: float, shortest_s: float = SHORTEST_S) -> float:
    """Seconds of silence after which a job that does nothing is hung.

    Args:
        slowest_s: the longest gap between two of its signs of life so far; 0: none was seen.
        full_s: the limit for whatever it does.
    """
    if not slowest_s:
        return full_s
    return max(min(shortest_s, full_s), min(GAPS * slowest_s, working_limit_s(slowest_s, full_s)))


def working_limit_s(slowest_s: float, full_s: float) -> float:
    """Seconds of silence after which a job is hung whatever it does: a slow one is not, only
    because its iterations are long.
    """
    return max(full_s, SLOW_GAPS * slowest_s)


class SlowestGap:
    """The slowest gap between two signs of life of the job at its own settings, over all its
    sessions.
    """

    def __init__(self) -> None:
        self.slowest_s = 0.0

    def note(self, gap_s: float) -> None:
        self.slowest_s = max(self.slowest_s, gap_s)


class Work:
    """Whether the processes of one session do anything. They are looked at twice in a silence only:
    looking costs the job CPU time.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._seen: tuple[float, float] | None = None  # (when, CPU seconds so far)

    def begin(self) -> None:
        """A sign of life was heard."""
        self._seen = None

    def ceased(self, now_s: float, silent_s: float, limit_s: float) -> bool:
        """Whether nothing was done for half of ``limit_s`` or longer, at the end of a silence of at
        least ``limit_s``.
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
        """CPU seconds that the living processes of the session have used."""
        return sum(stat[3] for stat in self._stats())

    def _only_waits(self) -> bool:
        """None of them runs (a busy machine may give it little) or waits for a disk. False where
        nothing can be seen of them.
        """
        stats = self._stats()
        return bool(stats) and not any(stat[0] in "RD" for stat in stats)

    def _stats(self) -> list[tuple[str, int, int, float, float]]:
        stats = (procfs.stat_of(pid) for pid in process_tags.marked(self._mark))
        return [stat for stat in stats if stat is not None]


class Silence:
    """One wait for the job, as far as nothing is heard of it.

    Args:
        limit_s: seconds of silence it is given, whatever it does.
        slowest_s: its slowest gap so far; 0.0: none is known, or the pace does not count.
        shortest_s: less is no hang, however fast its iterations.
        bounded: False if nobody knows how long what it does may take; as long as it uses the CPU
            the limit is then extended.
        judged: by its pace from the start; else from its first sign of life on.
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
        """Since the last sign of life."""
        return time.monotonic() - self._since

    def broken(self, slowest_s: float) -> None:
        """A sign of life: the slowest gap it tells of, 0.0 where the pace does not count."""
        self._since = time.monotonic()
        self._bounded = True  # it has trained
        self._judged = self._judged or slowest_s > 0
        self.slowest_s = max(self.slowest_s, slowest_s)
        self._work.begin()

    def too_long(self) -> bool:
        """Whether the job hangs."""
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
