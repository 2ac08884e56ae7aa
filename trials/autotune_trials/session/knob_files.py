"""What process knobs need before a process starts, and what is left of it afterwards: nothing.

    Preparation ── start(…) ─▶ process ── start(…) ─▶ process … ── close() ─▶ /dev/shm as it was
                     └ the knobs' prepare(): variables, words, files in one folder that all processes of the run share

The folder carries the mark of the process that made it: if that is killed,
:func:`autotune_trials.supervisor.process_tags.sweep_stale` finds it.
Whoever starts sessions on a machine has one of these there: the local executor, ``autotune
launch``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from time import perf_counter
from types import TracebackType

from autotune_spaces.base import Knob, Start, Value
from autotune_trials.supervisor import process_tags

SHM = "/dev/shm"


def silent(text: str) -> None:
    """Nobody waits."""


class Preparation:
    """One run's preparations on one machine; the :class:`~autotune_spaces.base.Scratch` of its
    knobs. A context manager.

    ``say``: is told what is done that may take minutes.
    """

    def __init__(self, parent: str = SHM, say: Callable[[str], None] = silent) -> None:
        self._parent = parent
        self._say = say
        self._folder = ""
        self._spent_s: dict[tuple[str, Value], float] = {}

    def folder(self) -> str:
        if not self._folder:
            self._folder = tempfile.mkdtemp(
                prefix=f"autotune-{process_tags.new_mark()}-", dir=self._parent
            )
        return self._folder

    def say(self, text: str) -> None:
        self._say(text)

    @property
    def used(self) -> bool:
        """Whether any knob has put files there."""
        return bool(self._folder)

    def start(self, start: Start, choices: Iterable[tuple[Knob, Value]]) -> Start:
        """``start`` prepared by every knob in turn.

        Raises:
            NotApplicable: one of them cannot be set here, now.
        """
        for knob, value in choices:
            began = perf_counter()
            start = knob.prepare(start, value, self)
            spent_s = perf_counter() - began
            self._spent_s[knob.name, value] = max(
                spent_s, self._spent_s.get((knob.name, value), 0.0)
            )
        return start

    def cost_s(self, choices: Iterable[tuple[Knob, Value]]) -> float:
        """What preparing them takes where nothing is prepared yet: in a run the first start pays, a
        job that is launched pays every time.
        """
        return sum(
            self._spent_s.get((knob.name, value), 0.0)
            for knob, value in choices
            if knob.start_up_cost
        )

    def close(self) -> None:
        """Remove the files. Idempotent; a later :meth:`start` makes them anew."""
        folder, self._folder = self._folder, ""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Preparation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
