"""Progress shown as plain lines, as JSON, or hardly at all; and which way is taken. The live table
stands in live_table.py.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO

from autotune import words
from autotune.report.progress import Event, Progress
from autotune.report.terminal.event_words import event_words

EVENT_SCHEMA_VERSION = 2


class QuietProgress(Progress):
    """Warnings on stderr, and the closing screen at the end."""

    def show(self, event: Event) -> None:
        from autotune.report.terminal.closing import closing_text

        if event.kind == "warning":
            text = f"warning: {words.clean(event.data['text'])}"
            sys.stderr.write(words.for_encoding(text, sys.stderr.encoding or "utf-8") + "\n")
        elif event.kind == "finished":
            self._line(closing_text(event.source["result"], event.source["run_dir"]))


class SilentProgress(Progress):
    """Nothing, for callers from Python."""

    def show(self, event: Event) -> None:
        pass


class JsonProgress(Progress):
    """One JSON object a line: ``event``, ``time_s`` and the fields docs/events.md lists. ASCII, no
    NaN.
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
    """One plain line an event, no control codes: for logs and pipes. The closing screen follows at
    the end.
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
    """The progress for ``kind``: "auto" (a live table on a terminal, else plain lines), "quiet",
    "silent" or "json".

    Args:
        budget_s: the time the run may take, for the clock.
        stream: where to; stdout if None.
        spent_s: of that time, by earlier processes that worked on the run.

    Raises:
        ValueError: another word.
    """
    stream = sys.stdout if stream is None else stream
    if kind == "quiet":
        return QuietProgress(stream)
    if kind == "silent":
        return SilentProgress(stream)
    if kind == "json":
        return JsonProgress(stream)
    if kind != "auto":
        raise ValueError(f"{kind!r} is not a way to show progress: auto, quiet, silent or json")
    if _can_draw(stream):
        from autotune.report.terminal.live_table import RichProgress

        return RichProgress(budget_s, stream, spent_s)
    return PlainProgress(stream)


def _can_draw(stream: IO[str]) -> bool:
    """A terminal that moves its cursor and can show the signs we use."""
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError):
        return False
    utf8 = (getattr(stream, "encoding", None) or "").lower().replace("-", "").replace(
        "_", ""
    ) == "utf8"
    return terminal and utf8 and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
