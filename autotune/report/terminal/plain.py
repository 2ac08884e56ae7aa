"""Progress as plain lines, JSON, warnings only or nothing, and the choice between all displays.

The live table is in live_table.py.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Callable
from typing import IO

from autotune import words
from autotune.report.progress import Event, Progress
from autotune.report.terminal.event_words import event_words

EVENT_SCHEMA_VERSION = 2


class QuietProgress(Progress):
    """Prints warnings to stderr and the closing screen at the end."""

    def show(self, event: Event) -> None:
        from autotune.report.terminal.closing import closing_text

        if event.kind == "warning":
            text = f"warning: {words.clean(event.data['text'])}"
            sys.stderr.write(words.for_encoding(text, sys.stderr.encoding or "utf-8") + "\n")
        elif event.kind == "finished":
            self._line(closing_text(event.source["result"], event.source["run_dir"]))


class SilentProgress(Progress):
    """Prints nothing, for calls from Python."""

    def show(self, event: Event) -> None:
        pass


class JsonProgress(Progress):
    """Prints one JSON object per line: ``event``, ``time_s`` and the fields in docs/events.md.

    ASCII, no NaN.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(stream)
        self._tell("start", {"schema_version": EVENT_SCHEMA_VERSION})

    def show(self, event: Event) -> None:
        from autotune.report.result_file import finite

        line = {"event": event.kind, "time_s": event.time_s, **event.data}
        self.stream.write(json.dumps(finite(line), default=str, allow_nan=False) + "\n")
        self.stream.flush()


class PlainProgress(Progress):
    """Prints one plain line per event and the closing screen at the end, without control codes.

    For logs and pipes.
    """

    def show(self, event: Event) -> None:
        if event.kind == "finished":
            from autotune.report.terminal.closing import closing_text

            self._line("")
            self._line(closing_text(event.source["result"], event.source["run_dir"]))
            return
        self._line(f"[{words.clock_words(event.time_s):>7}] {event_words(event)}")


def open_progress(
    kind: str, budget_s: float, stream: IO[str] | None = None, spent_s: float = 0.0
) -> Progress:
    """Create the progress display for ``kind``: "auto", "quiet", "silent" or "json".

    "auto" is a live table on a terminal, else plain lines.

    Args:
        budget_s: the time the run may take, for the clock.
        stream: output stream; None for stdout.
        spent_s: budget already spent by earlier processes on this run.

    Raises:
        ValueError: ``kind`` is unknown.
    """
    stream = sys.stdout if stream is None else stream
    displays: dict[str, Callable[[IO[str]], Progress]]
    displays = {"quiet": QuietProgress, "silent": SilentProgress, "json": JsonProgress}
    if kind in displays:
        return displays[kind](stream)
    if kind != "auto":
        raise ValueError(f"{kind!r} is not a progress display: auto, quiet, silent or json")
    if _can_draw(stream):
        from autotune.report.terminal.live_table import RichProgress

        return RichProgress(budget_s, stream, spent_s)
    return PlainProgress(stream)


def _can_draw(stream: IO[str]) -> bool:
    """Whether ``stream`` is a terminal with cursor movement and UTF-8."""
    try:
        terminal = stream.isatty()
        utf8 = codecs.lookup(getattr(stream, "encoding", "")).name == "utf-8"
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
    return terminal and utf8 and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
