"""The output of ``autotune profile``: the terminal screen, profile.html and summary.json."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune import words
from autotune.explain.records import Side
from autotune.report.page.html import render
from autotune.report.terminal.closing import time_section
from autotune.report.terminal.layout import indented, listed, section
from autotune.report.text import story
from autotune.report.text.findings import findings_group
from autotune.report.text.operators import TOP, operator_table
from autotune.report.text.summary import TOOLS, result_summary, summary_group
from autotune.report.text.written import written_lines
from autotune.results import Interval, LossState, LossVerdict, Profile, Result, RunVerdict
from autotune.run_directory import PROFILE_SUMMARY
from autotune_trials.paths import publish

PAGE = "profile.html"
FIGURES = ("self", "share", "calls")  # of an operator
OPEN_WITH = "ui.perfetto.dev or chrome://tracing"


def as_result(profile: Profile) -> Result:
    """Wrap the profile in a result without trials, so the report's building blocks can show it."""
    nothing = Interval(1.0, 1.0, 1.0)
    # the only side; label it with its settings, since it is not a "before"
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
    """``Loader-bound: 59% of the time is spent waiting for the next batch.``"""
    observation = profile.observation
    names = {"overhead": "Overhead-bound", "epoch ends": "Bound by epoch ends"}
    name = names.get(observation.bottleneck, f"{observation.bottleneck}-bound".capitalize())
    return f"{words.clean(name, 60)}: {words.clean(observation.bottleneck_why)}"


def setting_words(profile: Profile) -> str:
    return f"with {words.config_words(profile.config)}" if profile.config else "unchanged"


def no_effect(profile: Profile) -> list[str]:
    """What was requested but did not work: ranges inside the model, knobs without effect.

    Notes on external profilers are left out; the summary shows them.
    """
    said = [
        story.sentence(note) for note in profile.explanation.notes if not note.startswith(TOOLS)
    ]
    return said + [
        f"{words.clean(k, 60)} had no effect: {words.clean(why, 200)}"
        for k, why in profile.no_effect.items()
    ]


def files(profile: Profile) -> list[tuple[str, str]]:
    """(path within the directory, description) of every file a user might open."""
    found = [(PAGE, "this screen and more, as a page"), (PROFILE_SUMMARY, "all figures, as JSON")]
    for side in profile.explanation.sides.values():
        found += [
            (side.trace, f"timeline: open it in {OPEN_WITH}"),
            (side.stacks, "timeline with Python frames"),
            (side.table, "every operator"),
            (side.nsight, "for nsys-ui"),
            (side.ncu, "for ncu-ui"),
        ]
    return [(words.clean(path), what) for path, what in found if path]


def print_profile(console: Console, profile: Profile, directory: Path, job: Path) -> None:
    """Print the screen. ``console`` must have markup and emoji off: job text must stay literal."""
    result = as_result(profile)
    said = f"profiled {setting_words(profile)} in {words.duration_words(profile.wall_s)}"
    console.print(Text(f"{words.clean(profile.name)} · {said}", style="dim"))
    console.print(Text(headline(profile), style="bold"))
    for note in no_effect(profile):
        console.print(Text(note, style="yellow"))
    # without the bottleneck's reason: the headline already gives it
    time_section(
        console, replace(result, observation=replace(result.observation, bottleneck_why=""))
    )
    table = result_summary(result)
    if table is not None:
        section(console, "Performance summary", summary_group(table))
    for side in profile.explanation.sides.values():
        _operators(console, side)
    unjudged = len(profile.explanation.not_judged)
    judged = replace(result, explanation=replace(profile.explanation, not_judged=()))
    section(console, "Findings", findings_group(judged))
    if unjudged:
        said = f"{words.plural(unjudged, 'rule')} could not be judged here; the page says why"
        console.print(indented(Text(said, style="dim")))
    if lines := written_lines(profile.written, "the job"):
        told = [Text(line, style="yellow" if urgent else "dim") for line, urgent in lines]
        section(console, "Your files", *told)
    where = f"Files, in {story.shown_path(directory)}"
    section(console, where, *listed(console, files(profile)))
    run = f"autotune run {shlex.quote(str(job))}"
    section(console, "Next", *listed(console, [(run, "find its fastest settings")]))


def _operators(console: Console, side: Side) -> None:
    if not side.operators:
        return
    more = len(side.operators) - TOP
    rest = [Text(f"and {more} more, in {words.clean(side.table)}", style="dim")] if more > 0 else []
    section(console, "Top operators", operator_table(side, FIGURES), *rest)


@contextmanager
def status(name: str, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a status line if stderr is a terminal. Yields a function that prints above it."""
    if not shown or not sys.stderr.isatty():
        yield lambda text: None
        return
    console = Console(stderr=True, markup=False, emoji=False)
    with console.status(f"{words.clean(name)}: profiling"):
        yield lambda text: console.print(words.clean(text))
