"""The tuner's end of one slot: an executor whose sessions run there."""

from __future__ import annotations

import re
import tarfile
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.executors.base import NODE, Executor, FixedRun, LiveSession, SessionFailed
from autotune.executors.cluster.actors import Actors
from autotune.executors.cluster.answers import CHUNK_BYTES, Answer, SlotFacts, first_line
from autotune.executors.cluster.head import Head
from autotune.executors.cluster.places import Place
from autotune_trials.paths import new_session
from autotune_trials.protocol.messages import Block, BlockReport, Hello, Record

LOOK_S = 1.0  # between two checks of the cluster's head while a slot works
SLOT_END_S = 20.0  # for a slot to end by itself, before it is killed


class Sessions:
    """``<run>/sessions``, filled from all slots, with one numbering."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._turn = threading.Lock()

    def new(self, label: str, node: str) -> Path:
        """Make ``<number>-<label>@<node>``, which is empty until the session is brought home."""
        with self._turn:
            return new_session(
                self._run_dir, label, f"@{re.sub(r'[^A-Za-z0-9_.-]+', '-', node)}"
            ).root


class Lane(Executor):
    """Sessions on one slot.

    Any call may raise :class:`SessionFailed` ``lost``: its machine or its process is gone.

    Args:
        actors: with the handle of its :class:`autotune.executors.cluster.slot.Slot`.
        owner: its ``loader_key``, ``first_epoch_s`` and ``stretches`` apply to these sessions, too.
        head: of the cluster; its loss is noticed while a slot works, too.
    """

    def __init__(
        self,
        place: Place,
        actors: Actors,
        facts: SlotFacts,
        sessions: Sessions,
        owner: Executor,
        head: Head,
    ) -> None:
        self.place, self.facts, self.node = place, facts, place.name
        self.gone = self._busy = False
        self.finished = 0  # sessions
        self._actors = actors
        self._actor = actors.slot
        self._sessions = sessions
        self._owner = owner
        self._head = head

    @property
    def stretches(self) -> bool:
        """The owner's, so that what one slot has learned of the job applies to all."""
        return self._owner.stretches

    @stretches.setter
    def stretches(self, stretches: bool) -> None:
        self._owner.stretches = stretches

    @property
    def first_epoch_s(self) -> float:
        return self._owner.first_epoch_s

    @first_epoch_s.setter
    def first_epoch_s(self, seconds: float) -> None:
        self._owner.first_epoch_s = seconds

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the slot and wait for the answer.

        Raises:
            SessionFailed, InputError
            ClusterLost: the cluster as a whole is gone.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        if self.gone:
            raise self._lost("it was lost before")
        self._head.check()
        self._busy = True
        try:
            with self._head.client_errors_as_lost():
                asked = getattr(self._actor, method).remote(*arguments)
                while not ray.wait([asked], timeout=LOOK_S)[0]:
                    self._head.check()
                answer = ray.get(asked)
        except RayTaskError:  # our own bug there
            raise
        except RayError as error:
            self.give_up()
            raise self._lost(first_line(error)) from error
        except KeyboardInterrupt:
            self.give_up()  # a request to end would wait for its current work
            raise
        finally:
            self._busy = False
        try:
            return answer.get() if isinstance(answer, Answer) else answer
        except SessionFailed as failure:
            if failure.kind != "lost":
                raise
            self.give_up()  # another node of the slot is gone
            raise self._lost(failure.detail) from failure

    def open_live(self) -> LiveSession:
        home = self._sessions.new("live", self.node)
        try:
            hello: Hello = self.ask(
                "open_live", self._owner.loader_key, self.first_epoch_s, self.stretches, str(home)
            )
        except SessionFailed:
            self.bring("pack", home)
            raise
        self.last_hello = self._owner.last_hello = hello
        return SlotLiveSession(self, hello, home)

    def run_fixed(self, request: FixedRun) -> Record:
        home = self._sessions.new(request.label or "fixed", self.node)
        try:
            record, hello = self.ask("run_fixed", request, self._owner.loader_key, str(home))
        except SessionFailed:
            self.bring("pack", home)
            raise
        self.last_hello = self._owner.last_hello = hello
        self.bring("pack", home)
        return replace(record, notes={**record.notes, NODE: self.node})

    def survey(self) -> Mapping[str, Any]:
        return dict(self.ask("survey"))

    def measure_peaks(self, threads: int, device: str) -> Mapping[str, float]:
        return dict(self.ask("measure_peaks", threads, device))

    def bring(self, method: str, home: Path) -> None:
        """Have the session's directory packed by ``method``, and unpack it at ``home``.

        ``method`` may end the session first. If the slot is gone, the directory is gone, too, and
        ``home`` stays empty.
        """
        try:
            size = self.ask(method)
            self.finished += 1
            with tempfile.TemporaryFile(dir=home.parent) as file:
                for offset in range(0, size, CHUNK_BYTES):
                    file.write(self.ask("chunk", offset))
                file.seek(0)
                if size:
                    with tarfile.open(fileobj=file, mode="r:gz") as archive:
                        archive.extractall(home, filter="data")
        except SessionFailed as failure:
            if failure.kind != "lost":
                raise

    def close(self) -> None:
        """End the slot's sessions and its process. Idempotent; from any thread, even in use."""
        self.end_all([self])

    @staticmethod
    def end_all(slots: Sequence[Lane], patience_s: float = SLOT_END_S) -> None:
        import ray

        here = [slot for slot in slots if not slot.gone]
        asked = [slot._actor.close.remote() for slot in here if not slot._busy]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=patience_s)
        for slot in here:
            slot.give_up()

    def give_up(self) -> None:
        """Kill its processes: if it is only out of reach, it must not hold its nodes forever.

        The guard on each node ends the session and puts files back.
        """
        self.gone = True
        self._actors.end()

    def _lost(self, why: str) -> SessionFailed:
        return SessionFailed("lost", f"slot {self.node} is lost ({why})")


class SlotLiveSession(LiveSession):
    def __init__(self, slot: Lane, hello: Hello, home: Path) -> None:
        self._slot = slot
        self.hello = hello
        self.directory = home
        self._closed = False

    def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
        return list(self._slot.ask("measure", list(blocks)))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._slot.bring("close_live", self.directory)
