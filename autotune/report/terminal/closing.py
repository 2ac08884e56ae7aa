"""The closing screen: what was found, what to change, how sure it is, what to type next.

The same screen serves every verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from autotune import words
from autotune.report.terminal.layout import (
    PLAIN_WIDTH,
    bare_table,
    indented,
    listed,
    section,
    table,
    text_of,
)
from autotune.report.text import gains, story
from autotune.report.text.findings import findings_lines
from autotune.report.text.story import headline
from autotune.report.text.written import written_lines
from autotune.results import Result

LAST_REJECTED = 4  # rows; the page lists all of them
MOST_UNBEATEN = 8  # rows; the page lists all of them
BAR = 24  # width of the whole iteration in characters


def closing_text(result: Result, run_dir: Path, width: int = PLAIN_WIDTH) -> str:
    """The closing screen as plain text, without control codes."""
    return text_of(lambda console: print_closing(console, result, run_dir), width)


def print_closing(console: Console, result: Result, run_dir: Path) -> None:
    """Print the closing screen.

    ``console`` must have markup and emoji off: job text must stay literal.
    """
    console.print(Text(f"{words.clean(result.name)} · {story.tried(result)}", style="dim"))
    console.print(Text(headline(result), style="bold green" if story.tuned(result) else "bold"))
    for line in story.evidence(result):
        console.print(Text(line))
    back = gains.given_back(result)
    if result.knobs:
        changed = gains.changes(result)
        notes = [gains.own_gain_words(result), *(f"{r.knob} {r.note}" for r in changed if r.note)]
        if back:
            reset = ", ".join(f"{row.knob} {row.was} → {row.now}" for row in back)
            notes.append(f"not worth changing: {reset}")
        changes = table(
            ("knob", "was → now", "own gain"),
            [(row.knob, f"{row.was} → {row.now}", row.gain) for row in changed],
        )
        dim = [Text(note, style="dim") for note in notes if note]
        section(console, "Change" if story.tuned(result) else "Not adopted", changes, *dim)
    if unbeaten := story.unbeaten_rows(result):
        heads = ("knobs", *story.objective_words(result))
        live = Text("Live figures: no other configuration is better in both.", style="dim")
        section(console, "Both objectives", table(heads, unbeaten[:MOST_UNBEATEN]), live)
    _loss(console, result)
    time_section(console, result)
    if found := findings_lines(result):
        section(console, "Findings", *found)
    rejected = story.rejected_rows(result)
    if rejected:
        rows = bare_table(header=False)
        rows.add_column(overflow="fold", max_width=max(console.width * 11 // 20, 20))
        rows.add_column(overflow="fold", style="dim")
        for config, reason in rejected[:LAST_REJECTED]:
            rows.add_row(Text(config), Text(reason))
        rest = len(rejected) - LAST_REJECTED
        more = [Text(f"and {rest} more, in the report", style="dim")] if rest > 0 else []
        section(console, "Rejected", rows, *more)
    if files := written_lines(result.written):
        lines = [Text(line, style="yellow" if urgent else "dim") for line, urgent in files]
        section(console, "Files", *lines)
    section(console, "Next", *_next(console, result, run_dir))


def print_trials(console: Console, result: Result) -> None:
    """Print every configuration tried, in order, with its live figure, state and reason."""
    if not result.trials:
        console.print(Text("No configuration was tried."))
        return
    table = bare_table(2)
    table.add_column("trial", justify="right", style="dim", no_wrap=True)
    table.add_column("knobs", overflow="fold")
    table.add_column(gains.trial_gain_name(result), justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for trial in result.trials:
        notes = [indented(Text(n, style="dim")) for n in words.trial_notes(trial, 200)]
        knobs = Group(Text(words.config_words(trial.config)), *notes)
        speedup = words.trial_words(trial) if trial.speedup is not None else ""
        table.add_row(
            Text(str(trial.number)), knobs, Text(speedup), Text(words.clean(trial.state, 12))
        )
    console.print(table)
    console.print(Text("Live figures: they steer the search and are not the result.", style="dim"))


def _loss(console: Console, result: Result) -> None:
    loss = story.loss_story(result)
    if loss.title == "Loss check not needed" and not result.knobs:
        return  # nothing is changed
    style = "green" if loss.good else "yellow"
    body = [Text.assemble((f"{loss.title}. ", style), loss.said)]
    if loss.limit:
        body.append(Text(loss.limit, style="dim"))
    section(console, "Loss check", *body)


def time_section(console: Console, result: Result) -> None:
    """Print where the time of one iteration goes.

    All bars share one scale: the longer of before and after is the full width.
    """
    before, after = story.anatomies(result)
    sides = {"": before} if after is None else {"before": before, "after": after}
    rows = story.phase_rows(sides.values())
    if not rows or not words.known(before.iteration_s) or before.iteration_s <= 0:
        return
    whole = max(side.iteration_s for side in sides.values() if words.known(side.iteration_s))
    table = bare_table(2)
    table.add_column("one iteration", no_wrap=True)
    for name in sides:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="crop")
    for row in rows:
        times = map(words.duration_words, row.seconds)
        table.add_row(Text(row.label), *times, _bar(row.seconds, whole))
    totals = (words.duration_words(side.iteration_s) for side in sides.values())
    table.add_row("total", *totals, "", style="bold")
    if ends := story.epoch_ends(sides.values()):
        table.add_row(ends.label, *map(words.duration_words, ends.seconds), "")
    body: list[Any] = [table]
    for name, side in sides.items():
        said = story.iteration_words(side, result.observation.job.sample_unit)
        body.append(Text(f"{name}: {said}" if name else said, style="dim"))
    if unlike := story.unlike_iterations(result):
        body.append(Text(unlike, style="yellow"))
    why = story.sentence(result.observation.bottleneck_why)
    if after is None and why:
        bottleneck = words.clean(result.observation.bottleneck)
        body.append(Text(f"Bottleneck: {bottleneck}. {why}", style="dim"))
    section(console, "Where the time goes", *body)


def _bar(seconds: Sequence[float], whole_s: float) -> Text:
    """A bar for one phase: remaining time solid, saved time light, added time yellow."""
    widths = [min(round(BAR * s / whole_s), BAR) for s in seconds]
    old, new = widths[0], widths[-1]
    bar = Text("█" * min(old, new), style="blue")
    bar.append("░" * max(old - new, 0), style="dim")
    bar.append("█" * max(new - old, 0), style="yellow")
    return bar


def _next(console: Console, result: Result, run_dir: Path) -> list[Text]:
    lines = listed(console, story.next_commands(result, run_dir))
    report = Path(run_dir) / "report.html"
    if report.exists():
        where = f"report: {story.shown_path(report)}"
        lines.append(Text(where, style="dim", no_wrap=True, overflow="ignore"))
    return lines
