"""Terminal view of how the gain builds up and which knobs mattered."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune import words
from autotune.report.plots.waterfall import drawable, step_words
from autotune.report.terminal.layout import bare_table, indented
from autotune.report.text import gains
from autotune.results import Interval, Result

MOST_BAR = 30  # width of the longest bar in characters, on a wide terminal
KNOB = 23  # characters of the longest name of a knob
TEXT = KNOB + 51  # of all that is not the bar


def print_gains(console: Console, result: Result) -> None:
    """Print the waterfall and the knob importance. ``console`` must have markup and emoji off."""
    steps = drawable(result)
    bar = min(MOST_BAR, max(console.width - TEXT, 6))
    if steps:
        console.print(Text("How the gain builds up", style="bold"))
        table = _table()
        top = max([1.0, *(step.cumulative for step in steps)])
        before = 1.0
        table.add_row(Text("the job as it is"), Text("1×"), Text(""), _bar(0.0, 1.0, top, bar))
        for step in steps:
            interval = words.interval_words(Interval(step.cumulative, step.low, step.high))
            source = words.clean(step.source, 20)
            table.add_row(
                Text(step_words(result, step)),
                Text(interval),
                Text(source, style="dim"),
                _bar(before, step.cumulative, top, bar),
            )
            before = step.cumulative
        console.print(indented(table))
        console.print(indented(Text(gains.build_up_words(result), style="dim")))
        console.print()
    console.print(Text("Which knobs mattered", style="bold"))
    shares = gains.knob_shares(result)
    if not shares:
        console.print(indented(Text(gains.no_importance(result), style="dim")))
        return
    table = _table()
    for knob, share in shares.items():
        table.add_row(
            Text(knob),
            Text(f"{100 * share:.0f}%"),
            Text(""),
            _bar(0.0, share, max(shares.values()), bar),
        )
    console.print(indented(table))
    said = "share of the differences between trials, up or down; not the gain"
    console.print(indented(Text(said, style="dim")))


def _table() -> Table:
    table = bare_table(2, header=False)
    table.add_column(overflow="fold", min_width=KNOB)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="crop")
    return table


def _bar(start: float, end: float, top: float, width: int) -> Text:
    """A bar for one step: the part before it pale, what it adds solid, what it takes away hatched."""
    low, high = (round(width * max(min(v, top), 0.0) / top) for v in sorted((start, end)))
    sign, style = ("█", "green") if end >= start else ("▒", "yellow")
    return Text("░" * low, style="dim") + Text(sign * (high - low), style=style)
