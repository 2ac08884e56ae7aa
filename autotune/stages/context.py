"""What every stage works with: job, executor, journal, progress, tracking and the time left."""

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

from autotune.errors import BaselineError, HookError, Interrupted
from autotune.executors.base import Executor, SessionFailed
from autotune.explain.nsight import Tool
from autotune.history.use import History
from autotune.job.spec import JobSpec
from autotune.journal import Journal
from autotune.report.progress import Progress
from autotune.results import Observation
from autotune.tracking.base import Tracker
from autotune_spaces.codec import decode, encode
from autotune_trials.paths import publish
from autotune_trials.protocol.messages import Record

# multiple of the budget's minutes: work that would end later is not begun, or is announced before
# the search
OVER = 1.1
ANNOUNCED = "announced"  # journal key, see RunContext.announced_s
# kills in a row from outside during the same work, before the work itself is blamed
KILLS = 3
# after the job was ended: how long a stop signal may take to reach the tuner as well
ON_ITS_WAY_S = 0.5
# after SIGTERM: for the current measurement; schedulers kill after 30 s, and restoring files takes
# time, too
TERM_WITHIN_S = 10


def _interrupted() -> Interrupted:
    return Interrupted(
        "stopped on request; everything measured so far is saved",
        remedy="run the same command again, without --fresh, to resume",
    )


class Stop:
    """Ctrl-C and SIGTERM as a request to stop, honoured between two measurements.

    Ctrl-C    ──▶ request                           second one ──▶ KeyboardInterrupt
    SIGTERM   ──▶ request ── TERM_WITHIN_S later, as nobody can press it twice ────┘
    """

    def __init__(self) -> None:
        self._asked = threading.Event()

    def check_after(self, kind: str) -> None:
        """Check for a stop request before a failed session is judged.

        Whoever ends a whole process tree may reach the job before the tuner. The work in flight is
        then unfinished, not failed.

        Args:
            kind: of the failure.

        Raises:
            Interrupted: as :meth:`check`.
        """
        deadline = time.monotonic() + (
            ON_ITS_WAY_S if kind in ("crash", "ended", "killed", "unhooked") else 0.0
        )
        while not self._asked.is_set() and time.monotonic() < deadline:
            # not wait(): a signal handler could not set the event while this thread holds its lock
            time.sleep(0.02)
        self.check()

    def check(self) -> None:
        """Raise if the user asked to stop.

        Raises:
            Interrupted: everything finished is in the journal.
        """
        if self._asked.is_set():
            raise _interrupted()

    @contextmanager
    def listening(self, progress: Progress) -> Iterator[None]:
        """Turn the first signal into a request to stop; the second one interrupts at once.

        SIGTERM interrupts by itself after TERM_WITHIN_S. Only the main thread may handle signals:
        in any other thread this does nothing.

        Raises:
            Interrupted: at the second signal; or if the job failed after the first one, as what
                stops the whole process tree or cluster ends the job, too.
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
        except (BaselineError, HookError):
            self.check()
            raise
        except KeyboardInterrupt as twice:
            raise _interrupted() from twice
        finally:
            if signal.getsignal(signal.SIGALRM) is handle:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in previous.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class RunContext:
    """Everything a run works with. It is the same in all stages; results travel as arguments."""

    spec: JobSpec
    executor: Executor
    journal: Journal
    progress: Progress
    tracker: Tracker
    run_dir: Path
    seed: int = 0
    stop: Stop = field(default_factory=Stop)
    nsight: tuple[Tool, ...] = ()  # external profilers to use in the explain stage
    history: History | None = None  # of earlier runs; None: neither read nor written
    nvtx_modules: int = 0  # in profiled windows: ranges for modules down to this depth

    @property
    def observation(self) -> Observation | None:
        """The observed job; None before it has been observed."""
        stored = self.journal.find("observation")
        return None if stored is None else decode(Observation, stored)

    def out_of_time(self, ahead_s: float = 0.0, announced_s: float = 0.0) -> bool:
        """Whether the budget is used up, or ``ahead_s`` more would exceed it by more than a tenth.

        Nothing optional is begun then. ``announced_s``: a longer run time that the user was told.
        """
        budget_s = self.spec.budget.minutes * 60
        return self.journal.elapsed_s >= max(budget_s, announced_s) or (
            ahead_s > 0 and self.journal.elapsed_s + ahead_s > max(OVER * budget_s, announced_s)
        )

    def out_of_time_at(self, place: str, ahead_s: float, announced_s: float = 0.0) -> bool:
        """As :meth:`out_of_time`, decided once per ``place``.

        A resumed run, whose clock differs, must take the same path. If the budget was too small, a
        run with more minutes is decided again.
        """
        minutes = self.spec.budget.minutes
        known = self.journal.find("out-of-time", place)  # False, or the minutes that were too few
        if known is None or (known and minutes > known):
            known = self.out_of_time(ahead_s, announced_s) and minutes
            self.journal.append("out-of-time", place, known)
        return bool(known)

    @property
    def announced_s(self) -> float:
        """Run time announced before the search because it exceeds the budget; 0.0: none was."""
        return self.journal.find(ANNOUNCED) or 0.0

    def out_of_time_words(self) -> str:
        """Say that the budget is used up and what to do about it."""
        minutes = self.spec.budget.minutes
        return (
            f"the budget of {minutes:g} minute{'' if minutes == 1 else 's'} is used up (raise"
            " budget.minutes)"
        )

    def note_disturbed(self, where: str, why: str) -> None:
        """Note that a window is measured again because something else ran. The result counts it."""
        self.journal.append("disturbed", where, why)
        self.progress.note(f"{where}: {why}; measuring again")

    def note_lost(self, failure: SessionFailed) -> None:
        """Warn that a machine was lost: what it was measuring is measured elsewhere."""
        self.progress.warning(f"{failure.detail}; repeating the measurement that was running there")

    def recorded(
        self, key: str, label: str, measure: Callable[[], Record], anew: bool = False
    ) -> Record:
        """Return the fixed run stored under ``key``, or make one now with ``measure``.

        An earlier process of this run may have stored it. ``anew``: always make one.

        Raises:
            Interrupted: the user asked to stop.
        """
        record = None if anew else self.stored(key)
        if record is None:
            record = measure()
            self.keep_record(key, label, record)
        self.stop.check()
        return record

    def stored(self, key: str) -> Record | None:
        """Return the fixed run that :meth:`recorded` last stored under ``key``."""
        stored = self.journal.find("run", key)
        return self.load_record(stored["record"]) if stored else None

    def keep_record(self, key: str, label: str, record: Record) -> None:
        """Store a fixed run's record under ``key``, in a file named after ``label``."""
        name = re.sub(r"[^\w.-]", "_", label) + ".json"
        folder = self.run_dir / "records"
        folder.mkdir(exist_ok=True)
        publish(folder / name, json.dumps(encode(record), separators=(",", ":")))
        self.journal.append("run", key, {"record": name})

    def load_record(self, name: str) -> Record | None:
        """Return a stored record; None if it is gone or unreadable: it is then measured again."""
        try:
            return decode(Record, json.loads((self.run_dir / "records" / name).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None
