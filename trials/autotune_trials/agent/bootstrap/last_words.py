"""What a rank says of its own error, because nobody else can: the others wait for it in a
collective call.

    rank 1   raises ──▶ JobError ──▶ tuner, which ends the session at once
    rank 0   waits in all_reduce, and some time later dies of "Connection closed by peer"

The message leaves before this process does, so its time says who was first. One process alone needs
none of it: its end is seen, and its traceback is the last in the log.
"""

from __future__ import annotations

import os
import time
import traceback
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.facts.job_facts import rank, world_size
from autotune_trials.agent.facts.source_calls import OURS
from autotune_trials.protocol.messages import JobError, SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.bootstrap.channel import Channel
    from autotune_trials.agent.core.loop_state import LoopState
    from autotune_trials.protocol.messages import SessionConfig

LONGEST = 16_000  # characters of a traceback
# torchrun tells its ranks how often they were started again
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


class LastWords:
    """One a process. Nothing here raises."""

    def __init__(
        self, torch: Any, config: SessionConfig, state: LoopState, channel: Channel
    ) -> None:
        self._torch, self._config, self._state, self._channel = torch, config, state, channel
        # ids of errors told; an error that passes through several hooks is one
        self._said: set[int] = set()

    def tell_restart(self) -> None:
        """torchrun has replaced ranks that died: what comes now is another run of the job, and no
        part of this session.
        """
        count = os.environ.get(RESTARTS, "0")
        if count not in ("", "0"):
            self._send(
                "restart", f"the ranks were started again by their launcher (restart {count})"
            )

    def tell(self, error: BaseException, kind: str, surviving: bool) -> None:
        """``surviving``: the error is still on its way through the job's code, whose frames are not
        in its traceback.
        """
        if isinstance(error, Exception) and id(error) not in self._said and self._is_rank():
            self._said.add(id(error))
            self._send(kind, in_words(error, surviving))

    def _is_rank(self) -> bool:
        """This process trains with others; what a rank starts beside it has its variables too, and
        may fail as it likes.
        """
        torch, distributed = self._torch, self._torch.distributed
        joined = distributed.is_available() and distributed.is_initialized()
        return world_size(torch) > 1 and (joined or self._state.backwards > 0)

    def _send(self, kind: str, text: str) -> None:
        if self._config.mode != SessionMode.LAUNCH:
            self._channel.send(
                JobError(rank(self._torch), kind, text[-LONGEST:], time.monotonic(), os.getpid())
            )


def in_words(error: BaseException, surviving: bool) -> str:
    """The traceback of ``error`` without our own frames, with the callers of this one where the
    error has not passed them yet.
    """
    frames = [
        *(traceback.extract_stack() if surviving else ()),
        *traceback.extract_tb(error.__traceback__),
    ]
    shown = traceback.format_list([f for f in frames if not f.filename.startswith(OURS)])
    return "".join(
        ["Traceback (most recent call last):\n", *shown, *traceback.format_exception_only(error)]
    )
