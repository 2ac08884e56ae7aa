"""Live progress: what the stages tell while they work, shown as a table, as plain lines, as JSON, or hardly at all.

    stage ── observed(…) ──▶ Progress ── Event ──▶ show(event)      one event, four ways to show it

The stages call the methods of :class:`Progress`; each makes one :class:`Event`, plain data that docs/events.md
describes, and hands it to ``show``. Nothing a progress does may stop a run: whatever goes wrong while showing
is dropped (a closed pipe, a terminal that went away, a value nobody thought of).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from autotune.report import words
from autotune.report.story import ceiling_words
from autotune.results import Confirmation, LossVerdict, Observation, Result, Trial
from autotune_spaces.codec import encode

EVENT_SCHEMA_VERSION = 1
P = TypeVar("P", bound="Progress")


@dataclass(frozen=True)
class Event:
    """``kind`` and ``data`` are what ``--json`` prints; ``source`` holds the records the event was made of."""

    kind: str
    time_s: float  # since this process started on the run
    data: Mapping[str, Any]
    source: Mapping[str, Any]


class Progress(ABC):
    """Where the stages report to. A context manager; no method ever raises."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self._start = time.monotonic()
        self._closed = False
        self._turn = threading.RLock()  # sessions on several machines report when they please

    @abstractmethod
    def show(self, event: Event) -> None:
        """Show one event. May raise: the caller drops it."""

    def stage(self, name: str, detail: str = "") -> None:
        self._tell("stage", {"name": name, "detail": detail})

    def note(self, text: str) -> None:
        self._tell("note", {"text": text})

    def warning(self, text: str) -> None:
        self._tell("warning", {"text": text})

    def observed(self, observation: Observation) -> None:
        self._tell("observed", lambda: _observed_data(observation), observation=observation)

    def trial(self, trial: Trial, best: Trial | None) -> None:
        self._tell("trial", lambda: trial_data(trial) | {"best": None if best is None else trial_data(best)},
                   trial=trial, best=best)

    def measuring(self, label: str, config: Mapping[str, Any]) -> None:
        self._tell("measuring", lambda: {"label": label, "config": dict(config)})

    def fixed_run(self, label: str, index: int, total: int, config: Mapping[str, Any]) -> None:
        self._tell("fixed_run", lambda: {"label": label, "index": index, "total": total, "config": dict(config)})

    def confirmed(self, confirmation: Confirmation) -> None:
        self._tell("confirmed", lambda: _confirmed_data(confirmation), confirmation=confirmation)

    def loss(self, verdict: LossVerdict, config: Mapping[str, Any]) -> None:
        self._tell("loss", lambda: _loss_data(verdict) | {"config": dict(config)}, verdict=verdict)

    def finished(self, result: Result, run_dir: Path) -> None:
        self._tell("finished", lambda: _finished_data(result, run_dir), result=result, run_dir=run_dir)

    def _tell(self, kind: str, data: Any, **source: Any) -> None:
        if self._closed:
            return
        try:
            elapsed = time.monotonic() - self._start
            with self._turn:
                self.show(Event(kind, round(elapsed, 3), data() if callable(data) else data, source))
        except (BrokenPipeError, ValueError) as error:  # `| head` has read enough, or the stream is closed
            self._closed = isinstance(error, BrokenPipeError) or bool(getattr(self.stream, "closed", False))
            self._silence_stdout(error)
        except Exception:  # showing progress must never end a run that works
            pass

    def _silence_stdout(self, error: Exception) -> None:
        """After a broken pipe, let the interpreter's last flush of stdout go nowhere instead of complaining."""
        if isinstance(error, BrokenPipeError) and self.stream is sys.stdout:
            try:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)
            except (OSError, ValueError):
                pass

    def _line(self, text: str) -> None:
        self.stream.write(words.for_encoding(text, getattr(self.stream, "encoding", None) or "utf-8") + "\n")
        self.stream.flush()

    def __enter__(self: P) -> P:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed = True


def trial_data(trial: Trial) -> dict[str, Any]:
    interval = words.trial_interval(trial)
    return {
        "number": trial.number, "config": dict(trial.config), "state": trial.state, "origin": trial.origin,
        "speedup": None if interval is None else encode(interval), "pairs": trial.pairs, "reason": trial.reason,
        "no_effect": dict(trial.no_effect), "wall_s": trial.wall_s,
    }


def _observed_data(observation: Observation) -> dict[str, Any]:
    return {
        "bottleneck": observation.bottleneck, "why": observation.bottleneck_why, "ceiling": observation.ceiling,
        "noise": observation.noise, "anatomy": encode(observation.anatomy), "defaults": dict(observation.defaults),
        "domains": encode(observation.domains), "withdrawn": dict(observation.withdrawn),
    }


def _confirmed_data(confirmation: Confirmation) -> dict[str, Any]:
    return {
        "config": dict(confirmation.config), "speedup": encode(confirmation.speedup), "blocks": confirmation.blocks,
        "adopted": confirmation.adopted, "reason": confirmation.reason,
    }


def _loss_data(verdict: LossVerdict) -> dict[str, Any]:
    return {
        "verdict": verdict.verdict, "reason": verdict.reason, "pairs": verdict.pairs, "steps": verdict.steps,
        "margin": verdict.margin, "largest_difference": verdict.largest_difference, "numerics": verdict.numerics,
    }


def _finished_data(result: Result, run_dir: Path) -> dict[str, Any]:
    return {
        "verdict": result.verdict, "reason": result.reason, "speedup": encode(result.speedup),
        "loss": _loss_data(result.loss), "knobs": dict(result.knobs), "trials": len(result.trials),
        "wall_s": result.wall_s, "run_dir": str(run_dir),
    }


class QuietProgress(Progress):
    """Warnings on stderr, and the closing screen at the end."""

    def show(self, event: Event) -> None:
        from autotune.report.closing import closing_text

        if event.kind == "warning":
            text = f"warning: {words.clean(event.data['text'])}"
            sys.stderr.write(words.for_encoding(text, sys.stderr.encoding or "utf-8") + "\n")
        elif event.kind == "finished":
            self._line(closing_text(event.source["result"], event.source["run_dir"]).rstrip("\n"))


class JsonProgress(Progress):
    """One JSON object a line: ``event``, ``time_s`` and the fields docs/events.md lists. ASCII, no NaN."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(stream)
        self._tell("start", {"schema_version": EVENT_SCHEMA_VERSION})

    def show(self, event: Event) -> None:
        from autotune.report.result_file import finite

        line = {"event": event.kind, "time_s": event.time_s, **event.data}
        self.stream.write(json.dumps(finite(line), default=str, allow_nan=False) + "\n")
        self.stream.flush()


class PlainProgress(Progress):
    """One plain line an event, no control codes: for logs and pipes. The closing screen follows at the end."""

    def show(self, event: Event) -> None:
        if event.kind == "finished":
            from autotune.report.closing import closing_text

            self._line("")
            self._line(closing_text(event.source["result"], event.source["run_dir"]).rstrip("\n"))
            return
        self._line(f"[{words.clock_words(event.time_s):>7}] {event_words(event)}")


def event_words(event: Event) -> str:
    """One event as one line of plain text."""
    data, source = event.data, event.source
    if event.kind == "stage":
        return f"== {words.clean(data['name'])}" + (f": {words.clean(data['detail'])}" if data["detail"] else "")
    if event.kind == "note":
        return words.clean(data["text"])
    if event.kind == "warning":
        return f"warning: {words.clean(data['text'])}"
    if event.kind == "measuring":
        return f"measuring {words.clean(data['label'])}: {words.config_words(data['config'])}"
    if event.kind == "fixed_run":
        return (f"run {data['index']} of {data['total']}, {words.clean(data['label'])}: "
                f"{words.config_words(data['config'])}")
    if event.kind == "observed":
        return observed_words(source["observation"])
    if event.kind == "trial":
        return trial_line(source["trial"], source["best"])
    if event.kind == "confirmed":
        return confirmed_words(source["confirmation"])
    if event.kind == "loss":
        verdict: LossVerdict = source["verdict"]
        return (f"loss {words.clean(verdict.verdict)} for {words.config_words(data['config'])}"
                + (f": {words.clean(verdict.reason)}" if verdict.reason else ""))
    return words.clean(event.kind)


def observed_words(observation: Observation) -> str:
    anatomy = observation.anatomy
    parts = [
        f"bottleneck {words.clean(observation.bottleneck)}: {words.clean(observation.bottleneck_why)}".rstrip(": ."),
        f"{words.duration_words(anatomy.iteration_s)} an iteration, {words.number_words(anatomy.samples_per_s)} samples/s",
        f"{words.plural(len(observation.domains), 'knob')} to try, {len(observation.withdrawn)} withdrawn",
    ]
    ceiling = ceiling_words(observation)
    if ceiling:
        parts.insert(1, ceiling)
    return "; ".join(parts)


def trial_line(trial: Trial, best: Trial | None) -> str:
    text = f"trial {trial.number}: {words.config_words(trial.config)}: {words.trial_words(trial)}"
    if trial.speedup is not None and trial.state != "complete":
        text += f", {words.clean(trial.state)}"
    if trial.reason:
        text += f" ({words.clean(trial.reason, 160)})"
    if best is not None:
        text += "  [best so far]" if best.number == trial.number else f"  [best {words.factor_words(best.speedup)}]"
    return text


def confirmed_words(confirmation: Confirmation) -> str:
    said = "confirmed" if confirmation.adopted else "not confirmed"
    text = f"{said} {words.config_words(confirmation.config)}: {words.interval_words(confirmation.speedup)}"
    text += f" in {words.plural(confirmation.blocks, 'fresh process', 'fresh processes')} of each side"
    return text + (f"; {words.clean(confirmation.reason)}" if confirmation.reason else "")


def open_progress(kind: str, budget_s: float, stream: IO[str] | None = None) -> Progress:
    """The progress for ``kind``: "auto" (a live table on a terminal, else plain lines), "quiet" or "json".

    Args:
        budget_s: the time the run may take, for the clock.
        stream: where to; stdout if None.

    Raises:
        ValueError: another word.
    """
    stream = sys.stdout if stream is None else stream
    if kind == "quiet":
        return QuietProgress(stream)
    if kind == "json":
        return JsonProgress(stream)
    if kind != "auto":
        raise ValueError(f"{kind!r} is not a way to show progress: auto, quiet or json")
    if _can_draw(stream):
        from autotune.report.live import RichProgress

        return RichProgress(budget_s, stream)
    return PlainProgress(stream)


def _can_draw(stream: IO[str]) -> bool:
    """A terminal that moves its cursor and can show the signs we use."""
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError):
        return False
    utf8 = (getattr(stream, "encoding", None) or "").lower().replace("-", "").replace("_", "") == "utf8"
    return terminal and utf8 and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
