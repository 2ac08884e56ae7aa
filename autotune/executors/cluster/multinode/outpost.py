"""A further node of a slot that spans several. A Ray actor's class.

The slot starts, relays and ends its part of each session (spread.py).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.executors.cluster.answers import Answer, relocated
from autotune.executors.cluster.slot import Slot
from autotune.executors.local import LocalExecutor, SessionRequest, finish
from autotune.job.spec import JobSpec
from autotune_trials.protocol.messages import JobError
from autotune_trials.session.remote_session import Heard, RemoteSession

# of the actor: while one waits for the ranks' messages, others answer them, end the session, or
# report that the node is there
THREADS = 4


class Outpost(Slot):
    """Runs its node's part of one session at a time."""

    _session: RemoteSession | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turn = threading.Lock()  # the next session begins when the last one has ended

    def _executor(self, spec: JobSpec, own: tuple[Path, ...]) -> LocalExecutor:
        executor = LocalExecutor(spec, self._scratch, own=own)
        executor.session_class = RemoteSession
        return executor

    def begin(self, request: SessionRequest, variables: Mapping[str, str]) -> Answer:
        def do() -> None:
            self._local.variables = variables
            session = self._local.new_session(request)
            assert isinstance(session, RemoteSession)
            session.start()
            self._session = session

        with self._turn:
            return self._answer(do, "")

    def take(self, patience_s: float) -> Heard | None:
        session = self._session
        heard = session.take(patience_s) if session is not None else None
        if heard is None:
            return None
        names = {str(self._spec.workdir): str(self._home)}
        messages = [
            (rank, relocated(message, names) if isinstance(message, JobError) else message)
            for rank, message in heard.messages
        ]
        ended = None if heard.ended is None else relocated(heard.ended, names)
        return replace(heard, messages=messages, ended=ended)

    def give(self, number: int, line: bytes) -> None:
        if self._session is not None:
            self._session.give(number, line)

    def end(self) -> int:
        """End the session; returns the size of its packed directory in bytes."""
        with self._turn:
            session, self._session = self._session, None
            if session is not None:
                finish(session)
            return self._packed()

    def answers(self) -> bool:
        return True
