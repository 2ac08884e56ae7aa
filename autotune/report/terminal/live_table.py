"""The live table on a terminal.

    trial  knobs                                 speed-up
        6  num_workers=2                      1.43× ± 3%
        7  num_workers=2, amp_dtype=bfloat16  1.83× ± 4%  best
    search · 15:53 left of 20:00 · 7 trials · measuring trial 8: compile_mode=default

Redraws on events and once a second otherwise: drawing costs CPU on the machine being measured.
Stages, warnings and verdicts stay in the scrollback above the table; trials do not, the table shows
the last few.
"""

from __future__ import annotations

import time
from collections import deque
from typing import IO, Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from autotune import words
from autotune.report.progress import Event, Progress
from autotune.report.terminal.event_words import event_words
from autotune.report.terminal.layout import bare_table
from autotune.results import Trial

LAST_TRIALS = 8
STATE_STYLES = {"complete": "", "pruned": "dim", "infeasible": "yellow", "failed": "red"}


class RichProgress(Progress):
    """A live table; finished stages and verdicts stay in the scrollback.

    Args:
        budget_s: the time the run may take, for the clock in the footer.
        stream: a terminal.
        spent_s: budget already spent by earlier processes on this run.
    """

    def __init__(
        self, budget_s: float, stream: IO[str] | None = None, spent_s: float = 0.0
    ) -> None:
        super().__init__(stream)
        self.budget_s, self.spent_s = budget_s, spent_s
        self._console = Console(file=self.stream, highlight=False, markup=False, emoji=False)
        self._stage, self._now = "starting", ""
        self._trials: deque[Trial] = deque(maxlen=LAST_TRIALS)
        self._count = 0
        self._best: Trial | None = None
        self._live = Live(
            get_renderable=self._view, console=self._console, refresh_per_second=1, transient=True
        )

    def __enter__(self) -> RichProgress:
        try:
            self._live.start()
        except Exception:  # cannot draw on this terminal: print the scrolling lines only
            pass
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        super().__exit__()

    def _stop(self) -> None:
        try:
            self._live.stop()
        except Exception:  # the terminal went away
            pass

    def show(self, event: Event) -> None:
        if event.kind == "finished":
            self._finish(event)
            return
        if event.kind == "stage":
            self._stage, self._now = map(words.clean, (event.data["name"], event.data["detail"]))
            self._keep("bold", self._stage, f"  {self._now}" if self._now else "")
        elif event.kind in ("measuring", "fixed_run"):
            self._now = event_words(event)
        elif event.kind == "trial":
            self._add(event.source["trial"], event.source["best"])
        else:
            self._keep(_style(event), event_words(event), indent=2)
        self._live.refresh()  # redraw now, between two measurements, rather than during one

    def _add(self, trial: Trial, best: Trial | None) -> None:
        self._trials.append(trial)
        self._count += 1
        self._best = best
        self._now = ""

    def _keep(self, style: str, text: str, rest: str = "", indent: int = 0) -> None:
        line = Text(text, style=style)
        line.append(rest, style="dim not bold")
        self._console.print(Padding(line, (0, 0, 0, indent)))

    def _finish(self, event: Event) -> None:
        from autotune.report.terminal.closing import print_closing

        self._stop()
        self._console.print()
        print_closing(self._console, event.source["result"], event.source["run_dir"])

    def _view(self) -> Any:
        """The live part below the scrollback. Also runs in the refresh thread."""
        try:
            return self._table()
        # raising would end the refresh thread, or here the run; the next event redraws the table
        except Exception as error:
            self._note_bug(error)
            return Text("")

    def _table(self) -> Any:
        parts: list[Any] = [Text("")]
        if self._trials:
            table = bare_table(2)
            table.add_column("trial", justify="right", style="dim", no_wrap=True)
            table.add_column(
                "knobs",
                overflow="ellipsis",
                no_wrap=True,
                max_width=max(self._console.width - 38, 16),
            )
            table.add_column("speed-up", justify="right", no_wrap=True)
            table.add_column("", no_wrap=True)
            rows = list(self._trials)
            if self._best is not None and all(t.number != self._best.number for t in rows):
                rows.insert(0, self._best)
            for trial in rows:
                table.add_row(*self._row(trial), style=STATE_STYLES.get(trial.state, ""))
            parts.append(table)
        parts.append(self._footer())
        return Group(*parts)

    def _row(self, trial: Trial) -> tuple[Any, ...]:
        best = self._best is not None and trial.number == self._best.number
        mark = trial.state if trial.speedup is not None and trial.state != "complete" else ""
        mark = "best" if best else mark
        return (
            Text(str(trial.number)),
            Text(words.config_words(trial.config)),
            Text(words.trial_words(trial), style="bold green" if best else ""),
            Text(words.clean(mark, 12), style="green" if best else "dim"),
        )

    def _footer(self) -> Any:
        elapsed = self.spent_s + time.monotonic() - self._start
        left = self.budget_s - elapsed
        clock = (
            f"{words.clock_words(left)} left of {words.clock_words(self.budget_s)}"
            if left > 0
            else f"{words.clock_words(elapsed)}, finishing"
        )
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{self._stage}", style="bold")
        line.append(f" · {clock}", style="dim")
        if self._count:
            line.append(f" · {words.plural(self._count, 'trial')}", style="dim")
        if self._now:
            line.append(f" · {self._now}", style="dim")
        return line


def _style(event: Event) -> str:
    if event.kind == "confirmed":
        return "green" if event.data["adopted"] else ""
    if event.kind == "loss":
        styles = {"unchanged": "green", "changed": "red", "undecided": "yellow"}
        return styles.get(event.data["verdict"], "")
    return {"note": "dim", "warning": "yellow"}.get(event.kind, "")
