"""Waiting for the job: its next message, or why none can come.

message    an answer; signs of life only show that it is alive
silence    too long: a hang (silence.py)
an error   reported by a rank, once the others had time to report an earlier one
the end    the command has exited, or a training process is gone
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune_trials.diagnosis.failure_report import Postmortem
from autotune_trials.protocol.failures import SessionFailed
from autotune_trials.protocol.messages import (
    ELSEWHERE,
    BlockReport,
    Fault,
    Hello,
    JobError,
    Progress,
)
from autotune_trials.session import ranks
from autotune_trials.session.agent_connection import Connection
from autotune_trials.session.inbox import Inbox
from autotune_trials.session.silence import SHORTEST_S, UNCHANGED, Silence, SlowestGap, Work
from autotune_trials.supervisor import procfs
from autotune_trials.supervisor.client import SupervisedCommand

LAST_WORDS_S = 5.0  # after a training process died: for its launcher to report why
OTHERS_S = 0.3  # after a rank's error: for earlier errors of other ranks to arrive
STRAY_S = 15.0  # after a rank gave up a block: for the others to give it up too


@dataclass(frozen=True)
class Timeouts:
    """How long a session waits for its job."""

    startup_timeout_s: float = 600.0  # until the first optimizer step
    # silence that counts as a hang even if the job works or has not trained yet, in addition to the
    # time a block may take
    hang_timeout_s: float = 120.0
    shortest_hang_s: float = SHORTEST_S  # a shorter silence is no hang, however fast the iterations
    grace_s: float = 2.0  # between TERM and KILL


class Waiting:
    """Waits for the messages of one session.

    Args:
        work: whether the session's processes are working.
        pace, unchanged: as of the :class:`.Session`.
    """

    def __init__(
        self,
        command: SupervisedCommand,
        inbox: Inbox,
        postmortem: Postmortem,
        work: Work,
        timeouts: Timeouts,
        pace: SlowestGap,
        unchanged: bool,
    ) -> None:
        self._command, self._inbox, self._postmortem = command, inbox, postmortem
        self._work, self._timeouts, self._pace = work, timeouts, pace
        self.unchanged = unchanged  # so far; then the gaps are those of the job's own settings
        self.ranks: dict[int, Connection] = {}  # the training processes that have said hello
        self.handed_in: set[int] = set()  # ranks whose record has arrived; they may end
        # iterations done in the running block, as reported by a dying job
        self.in_block: int | None = None
        self.closed = False
        self._progress_seen = False
        # with ranks on other machines: raises if no further message can come from there
        self.check_elsewhere: Callable[[str], None] = lambda until: None

    def message(
        self,
        allowed_s: float,
        until: str,
        bounded: bool = True,
        stray: BlockReport | None = None,
        slow_start: bool = False,
    ) -> Any:
        """Return the next message other than Progress, which only shows that the job is alive.

        Args:
            allowed_s: time the requested work may take, in addition to the hang timeout.
            bounded: False if that time is unknown; a silent job may then go on as long as it uses
                the CPU.
            stray: report of a rank that gave up what the others still do; they must follow soon, or
                all ranks wait forever.
            slow_start: ignore silence before the first sign of life when judging the pace.

        Raises:
            SessionFailed
        """
        silence = Silence(
            self._work,
            STRAY_S if stray else allowed_s + self._timeouts.hang_timeout_s,
            slowest_s=0.0 if stray else self._pace.slowest_s,
            shortest_s=self._shortest_silence_s(),
            bounded=bounded or self._progress_seen,
            judged=not (stray or slow_start),
        )
        while True:
            arrived = self.next(1.0, until)
            if arrived is not None and isinstance(arrived[1], Hello):
                # an extra training process after all ranks connected: its agent switches itself off
                self._inbox.forget(arrived[0])
            elif arrived is not None and isinstance(arrived[1], Progress):
                self._progress_seen, self.in_block = True, arrived[1].in_block
                silence.broken(0.0 if stray else self._heard_pace(arrived[1]))
            elif arrived is not None:
                return arrived[1]
            elif silence.too_long() and stray is None:
                raise self._hang(silence)
            elif silence.too_long() and stray is not None:
                raise self._postmortem.failure(
                    "crash",
                    f"rank {stray.rank} aborted a block that the other ranks continued:"
                    f" {stray.error}",
                )

    def next(self, timeout_s: float, until: str) -> tuple[Connection, Any] | None:
        """The next message of any kind, or None after ``timeout_s``.

        Raises:
            SessionFailed: no further message can arrive, or one reports an error.
        """
        if self.closed:
            raise self._postmortem.failure("ended", f"the session was closed before {until}")
        if not self._inbox.messages:
            self._inbox.handle_events(timeout_s)
        if self._inbox.messages:
            rank, message = self._inbox.messages.popleft()
            if isinstance(message, Fault):
                raise self._postmortem.of_fault(message)
            if isinstance(message, JobError):
                raise self._of_ranks(message)
            return rank, message
        if self._command.lost:
            raise self._postmortem.of_lost_supervisor(self._command.lost)
        self._check_alive(until)
        return None

    def check_exit(self, patience_s: float) -> None:
        """Wait at most ``patience_s`` for a command whose training has ended to exit.

        Raises:
            SessionFailed: with an error, such as one that it catches and exits with itself.
        """
        until_s = time.monotonic() + patience_s
        while self._command.exit_status is None and time.monotonic() < until_s:
            self._inbox.handle_events(0.2)
        errors = (message for _, message in self._inbox.messages if isinstance(message, JobError))
        if error := next(errors, None):
            raise self._of_ranks(error)
        if self._command.exit_status:
            raise self._postmortem.of_exit(
                self._command.exit_status, "the measurement window was full"
            )

    def wait_for_last_words(self) -> None:
        """Wait for the command to exit or a message to arrive: it may report why a rank died."""
        until = time.monotonic() + LAST_WORDS_S
        while (
            self._command.exit_status is None
            and not self._inbox.messages
            and time.monotonic() < until
        ):
            self._inbox.handle_events(0.2)

    def pids(self) -> dict[int, int]:
        """rank -> pid of the training processes."""
        return {
            rank: connection.hello.pid
            for rank, connection in self.ranks.items()
            if connection.hello is not None
        }

    def _check_alive(self, until: str) -> None:
        """Check command and ranks; called whenever no message has arrived.

        Raises:
            SessionFailed: no further message can arrive.
        """
        self.check_elsewhere(until)
        dead = sorted(
            rank
            for rank, connection in self.ranks.items()
            if connection.dead and rank not in self.handed_in
        )
        if self._inbox.messages or (self._command.exit_status is None and not dead):
            return
        if self._command.exit_status == 0 and self.ranks and not dead:
            return  # the command put the training in the background
        self.wait_for_last_words()
        if self._inbox.messages:
            return
        if self._command.exit_status is not None:
            raise self._postmortem.of_exit(self._command.exit_status, until)
        hello = self.ranks[dead[0]].hello
        raise self._postmortem.of_silent_rank(
            dead[0], hello is not None and procfs.alive(hello.pid), until
        )

    def _of_ranks(self, first: JobError) -> SessionFailed:
        """Why a distributed job failed, from the errors of its ranks: when one fails, the others
        wait for it or die too.
        """
        errors, heard_s = [first], time.monotonic()
        while True:
            self._inbox.handle_events(0.05)
            messages = self._inbox.messages
            errors += [message for _, message in messages if isinstance(message, JobError)]
            messages.clear()
            patience_s = LAST_WORDS_S if ranks.first_cause(errors) is None else OTHERS_S
            if time.monotonic() - heard_s > patience_s or self._command.exit_status is not None:
                return self._postmortem.of_errors(errors)

    def _heard_pace(self, progress: Progress) -> float:
        """The slowest gap it reports; remembered only if it is from the job's own settings."""
        if self.unchanged:
            self._pace.note(progress.slowest_s)
        return progress.slowest_s

    def _shortest_silence_s(self) -> float:
        """Shortest silence after which an idle job counts as hung. :class:`Silence` adds
        PROGRESS_S, since newer signs of life may not have been sent yet.
        """
        if ELSEWHERE in self.pids().values():
            return math.inf  # whether processes on another machine are idle cannot be seen here
        return self._timeouts.shortest_hang_s * (UNCHANGED if self.unchanged else 1)

    def _hang(self, silence: Silence) -> SessionFailed:
        slowest_s = silence.slowest_s
        before = f" (longest gap before: {slowest_s:.2g} s)" if slowest_s else ""
        return self._postmortem.hang(
            self.pids(), f"no sign of progress for {silence.seconds:.0f} s{before}"
        )
