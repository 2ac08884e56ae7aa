"""Handles the job's own errors: exceptions that pass through our wrappers, the one the job dies of,
and running out of memory.

A rank of several reports its error itself, because no other rank can: the others wait for it in a
collective call.

    rank 1   raises ──▶ JobError ──▶ tuner, which ends the session at once
    rank 0   waits in all_reduce, and some time later dies of "Connection closed by peer"

The message is sent before the process dies, so its time says which rank failed first. A single
process needs none of this: its end is seen, and its traceback is the last in the log.
"""

from __future__ import annotations

import os
import time
import traceback
from typing import TYPE_CHECKING

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.controls.out_of_memory import is_out_of_memory
from autotune_trials.agent.dataloader.worker_ends import was_killed
from autotune_trials.agent.facts.ranks import rank, world_size
from autotune_trials.agent.facts.source_calls import OURS
from autotune_trials.protocol.messages import JobError, SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent

LONGEST = 16_000  # characters kept of a traceback
# in which torchrun tells its ranks how often they were restarted
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
REPORTED = "_autotune_reported"  # attribute of an error that was reported


class JobErrors:
    """Reports the job's errors to the tuner; the caller re-raises them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def report_restart(self) -> None:
        """Tell the tuner if torchrun has replaced ranks that died: what follows is another run of
        the job, and not part of this session.
        """
        count = os.environ.get(RESTARTS, "0")
        if count not in ("", "0"):
            self._send("restart", f"the launcher restarted the ranks (restart {count})")

    def on_job_error(self, error: BaseException) -> None:
        """An exception passes through job code that we wrap; the caller re-raises it."""
        if (
            not self._agent.state.stopped
            and isinstance(error, Exception)
            and is_out_of_memory(error)
        ):
            self._note_out_of_memory(error)
            self._report(error, "oom", surviving=True)

    def on_uncaught(self, error: BaseException) -> None:
        """The job is about to die of ``error``."""
        try:
            lost = is_out_of_memory(error)
            if lost:
                self._note_out_of_memory(error)
            elif was_killed(error):
                log.leave_marker("killed")
            self._report(error, "oom" if lost else "crash", surviving=False)
            self._agent.mode.on_crash()
        except Exception as ours:  # the job's own error must still surface
            if was_killed(ours):  # torch's handler of SIGCHLD has raised it in here
                log.leave_marker("killed")
            log.write_exception("excepthook")

    def _note_out_of_memory(self, error: BaseException) -> None:
        """Leave a marker and tell the mode, so that this process's end is not taken for a crash."""
        try:
            log.leave_marker("oom")
            log.write(f"oom: {str(error)[:500]}")
            text = str(error).strip() or type(error).__name__
            self._agent.mode.on_out_of_memory(text.splitlines()[0])
        except Exception:  # ours must not replace the job's own error
            self._agent.fail("out of memory")

    def _report(self, error: BaseException, kind: str, surviving: bool) -> None:
        """``surviving``: it is still propagating through the job's code, whose frames are not in its
        traceback yet.
        """
        # one that passes through several hooks is reported once
        if isinstance(error, Exception) and REPORTED not in vars(error) and self._is_rank():
            vars(error)[REPORTED] = True
            self._send(kind, in_words(error, surviving))

    def _is_rank(self) -> bool:
        """Whether this process trains with others. A process that a rank starts inherits the rank's
        environment variables; its errors do not matter.
        """
        torch = self._agent.torch
        distributed = torch.distributed
        joined = distributed.is_available() and distributed.is_initialized()
        return world_size(torch) > 1 and (joined or self._agent.state.backwards > 0)

    def _send(self, kind: str, text: str) -> None:
        agent = self._agent
        if agent.config.mode != SessionMode.LAUNCH:
            number = rank(agent.torch)
            agent.channel.send(
                JobError(number, kind, text[-LONGEST:], time.monotonic(), os.getpid())
            )


def in_words(error: BaseException, surviving: bool) -> str:
    """The traceback of ``error`` without the agent's frames; if ``surviving``, with the callers
    that the error has not reached yet.
    """
    frames = [
        *(traceback.extract_stack() if surviving else ()),
        *traceback.extract_tb(error.__traceback__),
    ]
    shown = traceback.format_list([f for f in frames if not f.filename.startswith(OURS)])
    return "".join(
        ["Traceback (most recent call last):\n", *shown, *traceback.format_exception_only(error)]
    )
