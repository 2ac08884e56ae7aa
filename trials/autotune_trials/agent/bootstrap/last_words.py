"""Reports a rank's own error, because no other rank can: the others wait for it in a collective
call.

    rank 1   raises ──▶ JobError ──▶ tuner, which ends the session at once
    rank 0   waits in all_reduce, and some time later dies of "Connection closed by peer"

The message is sent before the process dies, so its time says which rank failed first. A single
process needs none of this: its end is seen, and its traceback is the last in the log.
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

LONGEST = 16_000  # characters kept of a traceback
# in which torchrun tells its ranks how often they were restarted
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


class LastWords:
    """One per process. Nothing here raises."""

    def __init__(
        self, torch: Any, config: SessionConfig, state: LoopState, channel: Channel
    ) -> None:
        self._torch, self._config, self._state, self._channel = torch, config, state, channel
        # ids of reported errors; one that passes through several hooks is reported once
        self._said: set[int] = set()

    def tell_restart(self) -> None:
        """Report if torchrun has replaced ranks that died: what follows is another run of the job,
        and not part of this session.
        """
        count = os.environ.get(RESTARTS, "0")
        if count not in ("", "0"):
            self._send("restart", f"the launcher restarted the ranks (restart {count})")

    def tell(self, error: BaseException, kind: str, surviving: bool) -> None:
        """Report ``error``. ``surviving``: it is still propagating through the job's code, whose
        frames are not in its traceback yet.
        """
        if isinstance(error, Exception) and id(error) not in self._said and self._is_rank():
            self._said.add(id(error))
            self._send(kind, in_words(error, surviving))

    def _is_rank(self) -> bool:
        """Whether this process trains with others. A process that a rank starts inherits the rank's
        environment variables; its errors do not matter.
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
