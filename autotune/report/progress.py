"""Progress reporting: what the stages report while they work.

    stage ── observed(…) ──▶ Progress ── Event ──▶ show(event)      one event, several ways to show it (terminal/)

The stages call the methods of :class:`Progress`; each builds one :class:`Event` (plain data,
described in docs/events.md) and passes it to ``show``. Progress must never stop a run: errors while
showing an event are swallowed (a closed pipe, a terminal that went away, an unexpected value). One
that is a bug of ours is told at the end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from autotune import words
from autotune.results import Confirmation, LossVerdict, Observation, Result, Trial
from autotune_spaces.codec import encode


@dataclass(frozen=True)
class Event:
    """``--json`` prints ``kind`` and ``data``; ``source`` holds the records they were made from."""

    kind: str
    time_s: float  # since this process started working on the run
    data: Mapping[str, Any]
    source: Mapping[str, Any]


class Progress(ABC):
    """Receives the stages' reports. A context manager; the reporting methods never raise."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self._start = time.monotonic()
        self._closed = False
        self._bug: Exception | None = None  # the first one
        self._turn = threading.RLock()  # sessions on several machines report concurrently

    @abstractmethod
    def show(self, event: Event) -> None:
        """Show one event. May raise: the caller swallows the error."""

    def stage(self, name: str, detail: str = "") -> None:
        self._tell("stage", {"name": name, "detail": detail})

    def note(self, text: str) -> None:
        self._tell("note", {"text": text})

    def warning(self, text: str) -> None:
        self._tell("warning", {"text": text})

    def observed(self, observation: Observation) -> None:
        self._tell("observed", lambda: _observed_data(observation), observation=observation)

    def trial(self, trial: Trial, best: Trial | None) -> None:
        self._tell(
            "trial",
            lambda: trial_data(trial) | {"best": None if best is None else trial_data(best)},
            trial=trial,
            best=best,
        )

    def measuring(self, label: str, config: Mapping[str, Any]) -> None:
        self._tell("measuring", lambda: {"label": label, "config": dict(config)})

    def fixed_run(
        self, label: str, index: int, total: int, config: Mapping[str, Any] | None
    ) -> None:
        """``config``: None where the label says enough."""
        self._tell(
            "fixed_run",
            lambda: {
                "label": label,
                "index": index,
                "total": total,
                "config": None if config is None else dict(config),
            },
        )

    def confirmed(self, confirmation: Confirmation) -> None:
        self._tell(
            "confirmed",
            lambda: _fields(confirmation, "config speedup pairs adopted reason"),
            confirmation=confirmation,
        )

    def loss(self, verdict: LossVerdict, config: Mapping[str, Any]) -> None:
        self._tell("loss", lambda: _loss_data(verdict) | {"config": dict(config)}, verdict=verdict)

    def finished(self, result: Result, run_dir: Path) -> None:
        self._tell(
            "finished", lambda: _finished_data(result, run_dir), result=result, run_dir=run_dir
        )

    def _tell(self, kind: str, data: Any, **source: Any) -> None:
        if self._closed:
            return
        try:
            elapsed = time.monotonic() - self._start
            with self._turn:
                self.show(
                    Event(kind, round(elapsed, 3), data() if callable(data) else data, source)
                )
        except Exception as error:  # showing progress must never end a run that works
            # the reader is gone (`| head`), or the stream is closed
            self._closed = isinstance(error, BrokenPipeError) or bool(
                getattr(self.stream, "closed", False)
            )
            self._silence_stdout(error)
            if kind == "finished" and not self._closed:
                where = source["run_dir"]
                print(
                    f"autotune: cannot show the result ({error!r}); it is in {where}",
                    file=sys.stderr,
                )
            else:
                self._note_bug(error)

    def _note_bug(self, error: Exception) -> None:
        """Keep ``error`` for the end, unless the stream or the terminal may be its cause."""
        if self._bug is None and not isinstance(error, (OSError, ValueError)):
            self._bug = error

    def _silence_stdout(self, error: Exception) -> None:
        """After a broken pipe, redirect stdout to /dev/null so that the flush at exit succeeds."""
        if isinstance(error, BrokenPipeError) and self.stream is sys.stdout:
            try:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)
            except (OSError, ValueError):
                pass

    def _line(self, text: str) -> None:
        self.stream.write(
            words.for_encoding(text, getattr(self.stream, "encoding", None) or "utf-8") + "\n"
        )
        self.stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        if self._bug is not None:
            with suppress(OSError, ValueError):
                print(f"autotune: some progress was not shown ({self._bug!r})", file=sys.stderr)


def trial_data(trial: Trial) -> dict[str, Any]:
    told = "number config state origin pairs reason no_effect wall_s"
    return _fields(trial, told) | {"speedup": encode(words.trial_interval(trial))}


def _observed_data(observation: Observation) -> dict[str, Any]:
    told = "bottleneck ceiling noise anatomy defaults domains withdrawn"
    return _fields(observation, told) | {"why": observation.bottleneck_why}


def _loss_data(verdict: LossVerdict) -> dict[str, Any]:
    return _fields(verdict, "verdict reason pairs steps margin largest_difference numerics")


def _finished_data(result: Result, run_dir: Path) -> dict[str, Any]:
    return _fields(result, "verdict reason speedup knobs wall_s") | {
        "loss": _loss_data(result.loss),
        "trials": len(result.trials),
        "run_dir": str(run_dir),
    }


def _fields(record: Any, names: str) -> dict[str, Any]:
    return {name: encode(getattr(record, name)) for name in names.split()}
