"""What ``autotune profile`` shows and leaves: the terminal screen, profile.html, summary.json."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune import words
from autotune.explain.records import Side
from autotune.job.run_dir import PROFILE_SUMMARY
from autotune.report.page.html import render
from autotune.report.terminal.closing import PLAIN_WIDTH, time_section
from autotune.report.text import story
from autotune.report.text.findings import print_findings
from autotune.report.text.operators import row_words
from autotune.report.text.summary import TOOLS, print_summary, result_summary
from autotune.report.text.written import written_lines
from autotune.results import Interval, LossState, LossVerdict, Profile, Result, RunVerdict
from autotune_trials.paths import publish

PAGE = "profile.html"
TOP_OPERATORS = 5
OPEN_WITH = "ui.perfetto.dev or chrome://tracing"


def as_result(profile: Profile) -> Result:
    """The profile in the shape the parts of the report are written for: a result in which nothing
    was tried.
    """
    nothing = Interval(1.0, 1.0, 1.0)
    # there is one; it is no "before"
    sides = {setting_words(profile): side for side in profile.explanation.sides.values()}
    return Result(
        name=profile.name,
        verdict=RunVerdict.PROFILE,
        reason="",
        speedup=nothing,
        loss=LossVerdict(LossState.NOT_NEEDED, "nothing was changed", 0, 0),
        knobs={},
        baseline=profile.observation.defaults,
        observation=profile.observation,
        confirmation=None,
        gains=(),
        rejected=(),
        trials=(),
        wall_s=profile.wall_s,
        environment=profile.environment,
        explanation=replace(profile.explanation, sides=sides),
    )


def write_profile(profile: Profile, directory: Path) -> None:
    """Write summary.json and profile.html.

    Raises:
        OSError: the directory cannot be written.
    """
    from autotune.report.result_file import json_text

    publish(directory / PROFILE_SUMMARY, json_text(profile))
    page = render(
        as_result(profile),
        directory,
        "profile.html.j2",
        title=headline(profile),
        setting=setting_words(profile),
        no_effect=no_effect(profile),
        files=files(profile),
    )
    publish(directory / PAGE, page)


def headline(profile: Profile) -> str:
    """``Loader-bound: 59 % of the time is spent waiting for the next batch.``"""
    observation = profile.observation
    names = {"overhead": "Bound by overhead", "epoch ends": "Bound by the ends of its epochs"}
    name = names.get(observation.bottleneck, f"{observation.bottleneck}-bound".capitalize())
    return f"{words.clean(name, 60)}: {words.clean(observation.bottleneck_why)}"


def setting_words(profile: Profile) -> str:
    return f"with {words.config_words(profile.config)}" if profile.config else "as it is"


def no_effect(profile: Profile) -> list[str]:
    """What was asked for and not to be had: ranges inside the model, knobs that did nothing. What
    concerns tools is in the summary.
    """
    said = [
        story.sentence(note) for note in profile.explanation.notes if not note.startswith(TOOLS)
    ]
    return said + [
        f"{words.clean(k, 60)} had no effect: {words.clean(why, 200)}"
        for k, why in profile.no_effect.items()
    ]


def files(profile: Profile) -> list[tuple[str, str]]:
    """(path within the directory, what it is) of everything a person would open."""
    found = [
        (PAGE, "this screen and more, as a page"),
        (PROFILE_SUMMARY, "all figures, for programs"),
    ]
    for side in profile.explanation.sides.values():
        found += [
            (side.trace, f"timeline: open it in {OPEN_WITH}"),
            (side.stacks, "timeline with Python frames"),
            (side.table, "every operator"),
            (side.nsight, "for nsys-ui"),
            (side.ncu, "for ncu-ui"),
        ]
    return [(words.clean(path), what) for path, what in found if path]


def profile_text(profile: Profile, directory: Path, job: Path, width: int | None = None) -> str:
    """The screen as plain text; ``width``: of the terminal, None for a log file (no colours then)."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width or PLAIN_WIDTH,
        color_system="auto" if width is not None else None,
        force_terminal=width is not None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    print_profile(console, profile, directory, job)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def print_profile(console: Any, profile: Profile, directory: Path, job: Path) -> None:
    """Print the screen. ``console`` must have markup and emoji off: the job's words are not ours to
    interpret.
    """
    from rich.padding import Padding
    from rich.text import Text

    def section(title: str, *body: Any) -> None:
        console.print()
        console.print(Text(title, style="bold"))
        for part in body:
            console.print(Padding(part, (0, 0, 0, 2)))

    result = as_result(profile)
    said = f"profiled {setting_words(profile)} in {words.duration_words(profile.wall_s)}"
    console.print(Text(f"{words.clean(profile.name)} · {said}", style="dim"))
    console.print(Text(headline(profile), style="bold"))
    for note in no_effect(profile):
        console.print(Text(note, style="yellow"))
    # the headline has it
    time_section(
        section, replace(result, observation=replace(result.observation, bottleneck_why=""))
    )
    sides = profile.explanation.sides
    table = result_summary(result)
    if table is not None:
        section("Performance summary")
        _indented(console, lambda inner: print_summary(inner, table))
    for side in sides.values():
        _operators(section, side)
        _counters(section, side)
    section("Findings")
    unjudged = len(profile.explanation.not_judged)
    judged = replace(result, explanation=replace(profile.explanation, not_judged=()))
    _indented(console, lambda inner: print_findings(inner, judged))
    if unjudged:
        console.print(
            Text(
                f"  {words.plural(unjudged, 'rule')} could not be judged here; the page says why",
                style="dim",
            )
        )
    if lines := written_lines(profile.written, "The job"):
        section(
            "Your files",
            *(Text(line, style="yellow" if urgent else "dim") for line, urgent in lines),
        )
    section(f"Files, in {story.shown_path(directory)}", *_listed(console, files(profile)))
    section(
        "Next",
        *_listed(
            console,
            [(f"autotune run {shlex.quote(str(job))}", "find the settings it runs fastest with")],
        ),
    )


def _listed(console: Any, rows: list[tuple[str, str]]) -> list[Any]:
    """What can be copied, unbroken, and what it is: beside it where all fit, else below."""
    from rich.text import Text

    column = max(len(left) for left, _ in rows)
    wide = column + 5 + max(len(what) for _, what in rows) <= console.width
    lines = []
    for left, what in rows:
        text = Text(left, no_wrap=True, overflow="ignore")
        lines.append(
            text.append(" " * (column - len(left) + 3) + what, style="dim") if wide else text
        )
        if not wide:
            lines.append(Text(f"  {what}", style="dim"))
    return lines


def _indented(console: Any, show: Any) -> None:
    """What ``show`` prints, two columns in."""
    from rich.padding import Padding
    from rich.text import Text

    with console.capture() as captured:
        width, console.width = console.width, max(console.width - 2, 20)
        try:
            show(console)
        finally:
            console.width = width
    console.print(Padding(Text.from_ansi(captured.get().rstrip("\n")), (0, 0, 0, 2)))


def _operators(section: Any, side: Side) -> None:
    from rich.table import Table
    from rich.text import Text

    if not side.operators:
        return
    table = Table(box=None, padding=(0, 3, 0, 0), show_edge=False, header_style="dim")
    for title, right in (
        ("operator", False),
        ("self time", True),
        ("share", True),
        ("calls", True),
        ("verdict", False),
    ):
        table.add_column(
            title, justify="right" if right else "left", overflow="fold", no_wrap=right
        )
    for row in side.operators[:TOP_OPERATORS]:
        figures = (
            words.duration_words(row.self_time_s),
            f"{100 * row.share:.1f} %",
            f"{row.calls:,}",
        )
        table.add_row(Text(words.clean(row.name, 80)), *figures, Text(row_words(row)["verdict"]))
    more = len(side.operators) - TOP_OPERATORS
    section(
        "Top operators",
        table,
        *(
            [Text(f"and {more} more, in {words.clean(side.table)}", style="dim")]
            if more > 0
            else []
        ),
    )


def _counters(section: Any, side: Side) -> None:
    from rich.table import Table
    from rich.text import Text

    if not side.counters:
        return
    table = Table(box=None, padding=(0, 3, 0, 0), show_edge=False, header_style="dim")
    for title in ("kernel", "time", "compute", "memory", "occupancy"):
        table.add_column(title, justify="left" if title == "kernel" else "right", overflow="fold")
    for one in side.counters:
        shares = (one.compute_share, one.memory_share, one.occupancy)
        table.add_row(
            Text(words.clean(one.name, 80)),
            words.duration_words(one.duration_s),
            *(f"{100 * s:.0f} %" if words.known(s) else "–" for s in shares),
        )
    section("Nsight Compute, share of what the card can sustain", table)


@contextmanager
def status(name: str, shown: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is going on, on a terminal; nothing elsewhere. Yields what says more
    above it.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    console = Console(stderr=True, markup=False, emoji=False)
    with console.status(f"{words.clean(name)}: profiling"):
        yield lambda text: console.print(words.clean(text))
