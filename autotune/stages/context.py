"""What every stage works with: the job, a place to run it, the run's memory, somebody to tell, and
the time left.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import Interrupted
from autotune.executors.base import Executor
from autotune.explain.nsight import Tool
from autotune.history.use import History
from autotune.job.spec import JobSpec
from autotune.journal import Journal
from autotune.report.progress import Progress
from autotune.tracking.base import Tracker
from autotune_spaces.codec import decode, encode
from autotune_trials.paths import publish
from autotune_trials.protocol.messages import Record

# of the budget's minutes: what would end later is not begun, or is foretold before the search
OVER = 1.1
ANNOUNCED = "announced"  # in the journal, see RunContext.announced_s
# times in a row that somebody may kill the job in the same piece of work, before that is taken for
# the work's own doing
KILLS = 3
ON_ITS_WAY_S = 0.5  # after a job was ended by somebody: for the signal that says so to the tuner
# after SIGTERM: for the current measurement; schedulers kill after 30 s, and putting things back
# takes its time, too
TERM_WITHIN_S = 10


def interrupted() -> Interrupted:
    return Interrupted(
        "stopped on request; everything measured so far is saved",
        remedy="the same command again carries on from here",
    )


class Stop:
    """Ctrl-C and SIGTERM as a request that the stages honour between two measurements.

    Ctrl-C    ──▶ request                           second one ──▶ KeyboardInterrupt
    SIGTERM   ──▶ request ── TERM_WITHIN_S later, nobody is there to press twice ──┘
    """

    def __init__(self) -> None:
        self._asked = threading.Event()

    def check_after(self, kind: str) -> None:
        """As :meth:`check`, before a session that failed is judged. Who ends a whole tree of
        processes may reach the job before the
        tuner: what was in flight then is unfinished, and no failure.

        Args:
            kind: of the failure.

        Raises:
            Interrupted: as :meth:`check`.
        """
        deadline = time.monotonic() + (
            ON_ITS_WAY_S if kind in ("crash", "ended", "killed", "unhooked") else 0.0
        )
        while not self._asked.is_set() and time.monotonic() < deadline:
            # not wait(): the handler of a signal could not set what this thread has locked
            time.sleep(0.02)
        self.check()

    def check(self) -> None:
        """Raises:
        Interrupted: the user asked to stop. What is finished is in the journal.
        """
        if self._asked.is_set():
            raise interrupted()

    @contextmanager
    def listening(self, progress: Progress) -> Iterator[None]:
        """Turn the first signal into a request; the second one interrupts at once, and SIGTERM
        after a while by itself.

        Only the main thread may handle signals: called from another one, they stay its owner's
        business.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: object) -> None:
            if self._asked.is_set():
                raise KeyboardInterrupt
            self._asked.set()
            if number == signal.SIGTERM:
                signal.signal(signal.SIGALRM, handle)
                signal.setitimer(signal.ITIMER_REAL, TERM_WITHIN_S)
                progress.warning(
                    f"stopping after the current measurement, or in {TERM_WITHIN_S:.0f} s"
                )
            else:
                progress.warning(
                    "stopping after the current measurement; press Ctrl-C again to stop now"
                )

        previous = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handle)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGALRM) is handle:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in previous.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class RunContext:
    """The surroundings of a run. Nothing here changes from stage to stage; results travel as
    arguments.
    """

    spec: JobSpec
    executor: Executor
    journal: Journal
    progress: Progress
    tracker: Tracker
    run_dir: Path
    seed: int = 0
    stop: Stop = field(default_factory=Stop)
    nsight: tuple[Tool, ...] = ()  # external profilers asked for, in the explain stage
    history: History | None = None  # of earlier runs; None: it is not asked and not told
    nvtx_modules: int = 0  # in profiled windows: ranges for modules down to this depth

    def out_of_time(self, ahead_s: float = 0.0, announced_s: float = 0.0) -> bool:
        """The budget's minutes are used up, or would be passed by more than a tenth by what takes
        ``ahead_s``: nothing optional is begun any more. ``announced_s``: it may take so long.
        """
        budget_s = self.spec.budget.minutes * 60
        return self.journal.elapsed_s >= max(budget_s, announced_s) or (
            ahead_s > 0 and self.journal.elapsed_s + ahead_s > max(OVER * budget_s, announced_s)
        )

    def out_of_time_at(self, place: str, ahead_s: float = 0.0, announced_s: float = 0.0) -> bool:
        """The same, decided once a place: a resumed run, whose clock stands elsewhere, must take
        the same way. One with more minutes is asked again where these were too few.
        """
        minutes = self.spec.budget.minutes
        known = self.journal.find("out-of-time", place)  # False, or the minutes that were too few
        if known is None or (known and minutes > known):
            known = self.out_of_time(ahead_s, announced_s) and minutes
            self.journal.append("out-of-time", place, known)
        return bool(known)

    @property
    def announced_s(self) -> float:
        """How long the user was told before the search that the run will take, as that is more than
        the budget; 0.0: it is not.
        """
        return self.journal.find(ANNOUNCED) or 0.0

    def out_of_time_words(self) -> str:
        """What ended it, and what to do."""
        minutes = self.spec.budget.minutes
        return (
            f"the budget of {minutes:g} minute{'' if minutes == 1 else 's'} is used up (raise"
            " budget.minutes)"
        )

    def note_disturbed(self, where: str, why: str) -> None:
        """A window is measured again because something else ran; counted in the result."""
        self.journal.append("disturbed", where, why)
        self.progress.note(f"{where}: {why}; measured again")

    def recorded(
        self, key: str, label: str, measure: Callable[[], Record], anew: bool = False
    ) -> Record:
        """The fixed run stored under ``key`` by an earlier process of this run, else what
        ``measure`` gives now; with ``anew``, always that.

        Raises:
            Interrupted: the user asked to stop.
        """
        record = None if anew else self.stored(key)
        if record is None:
            record = measure()
            self.journal.append("run", key, {"record": self.keep_record(label, record)})
        self.stop.check()
        return record

    def stored(self, key: str) -> Record | None:
        """The fixed run that :meth:`recorded` stored last under ``key``."""
        stored = self.journal.find("run", key)
        return self.load_record(stored["record"]) if stored else None

    def keep_record(self, label: str, record: Record) -> str:
        """Store a fixed run's record; returns its file name, to be put in the journal."""
        name = re.sub(r"[^\w.-]", "_", label) + ".json"
        folder = self.run_dir / "records"
        folder.mkdir(exist_ok=True)
        publish(folder / name, json.dumps(encode(record), separators=(",", ":")))
        return name

    def load_record(self, name: str) -> Record | None:
        """A stored record, or None if it is gone or unreadable: it is then measured again."""
        try:
            return decode(Record, json.loads((self.run_dir / "records" / name).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None
