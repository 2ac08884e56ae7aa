"""The comparison of two runs, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune import words
from autotune.explain.records import Finding
from autotune.report.terminal.layout import section, table
from autotune.report.text import comparison as compared
from autotune.report.text import gains, story
from autotune.report.text.comparison import Comparison, OperatorRow, planned_steps
from autotune.results import Anatomy, Result

OPERATOR_HEADS = ("operator", "A", "B", "change")


def print_comparison(console: Console, it: Comparison) -> None:
    """Print the comparison. ``console`` must have markup and emoji off."""
    for name, run in (("A", it.a), ("B", it.b)):
        said = f"{words.clean(run.name, 80)}: {story.headline(run)}"
        console.print(Text.assemble((f"{name}  ", "bold"), said))
    console.print(Text(compared.said_of_speedups(it), style="bold"))
    if it.differences:
        unlike = [Text(said, style="yellow") for said in it.differences]
        section(console, "These runs differ", *unlike)
    figures = table(("", "A", "B", "B over A"), figure_rows(it))
    said_of_times = (Text(said, style="dim") for said in compared.said_of_times(it))
    section(console, "Figures", figures, *said_of_times)
    if it.knobs:
        knobs = [(k.knob, k.a, k.b, "differ" if k.differ else "") for k in it.knobs]
        section(console, "Knobs", table(("knob", "A", "B", ""), knobs))
    phases = phase_rows([*compared.ends(it.a), *compared.ends(it.b)])
    heads = ("", "A before", "A after", "B before", "B after")
    section(console, "One iteration", table(heads, phases))
    if it.operators:
        title = "Operators that changed most (estimated time per iteration)"
        section(console, title, table(OPERATOR_HEADS, map(operator_row, it.operators)))
    for name, findings in (("A", it.only_a), ("B", it.only_b)):
        if findings:
            section(console, f"Found in {name} only", *(Text(finding_words(f)) for f in findings))


def figure_rows(it: Comparison) -> list[tuple[str, str, str, str]]:
    """Rows of figures: name, A, B, and B over A with its interval ("" if no ratio is claimed)."""
    (before_a, after_a), (before_b, after_b) = compared.ends(it.a), compared.ends(it.b)
    unit = words.clean(it.a.observation.job.sample_unit)

    def ratio(interval: Any) -> str:
        return words.interval_words(interval) if interval is not None else ""

    return [
        ("verdict", words.clean(it.a.verdict), words.clean(it.b.verdict), ""),
        (gains.gain_name(it.b), speedup_words(it.a), speedup_words(it.b), ratio(it.speedups)),
        ("loss", story.loss_story(it.a).title, story.loss_story(it.b).title, ""),
        (
            f"{unit}/s before",
            words.number_words(before_a.samples_per_s),
            words.number_words(before_b.samples_per_s),
            ratio(it.baselines),
        ),
        (
            f"{unit}/s after",
            words.number_words(after_a.samples_per_s),
            words.number_words(after_b.samples_per_s),
            ratio(it.tuned),
        ),
        ("planned training", _planned(it.a), _planned(it.b), ""),
        ("trials", str(len(it.a.trials)), str(len(it.b.trials)), ""),
        ("tuning took", words.duration_words(it.a.wall_s), words.duration_words(it.b.wall_s), ""),
    ]


def _planned(result: Result) -> str:
    steps = planned_steps(result)
    return story.whole_training(result) + (f" ({steps:,} steps)" if steps else "")


def speedup_words(result: Result) -> str:
    """The speed-up with its interval; "none" if the baseline was kept."""
    return words.interval_words(result.speedup) if story.tuned(result) else "none"


def phase_rows(sides: Sequence[Anatomy]) -> list[tuple[str, ...]]:
    """The time of one iteration in each phase, the total, and what epoch ends add; one column for
    each side.
    """

    def cells(row: story.PhaseRow) -> tuple[str, ...]:
        return (row.label, *map(words.duration_words, row.seconds))

    total = ("total", *(words.duration_words(side.iteration_s) for side in sides))
    ends = story.epoch_ends(sides)
    return [*map(cells, story.phase_rows(sides)), total, *([cells(ends)] if ends else [])]


def operator_row(row: OperatorRow) -> tuple[str, str, str, str]:
    """Cells under :data:`OPERATOR_HEADS`."""
    change_s = row.b_s - row.a_s
    change = f"{'+' if change_s > 0 else ''}{words.duration_words(change_s)}"
    return row.name, words.duration_words(row.a_s), words.duration_words(row.b_s), change


def finding_words(finding: Finding) -> str:
    """``device-sync at train.py:41, 3.10 ms per iteration: a value is read from the device in every
    step``
    """
    place = (
        f" at {words.clean(finding.place.file)}:{finding.place.line}"
        if finding.place is not None
        else ""
    )
    cost_s = finding.cost_s if finding.cost_after_s is None else finding.cost_after_s
    cost = f", {words.duration_words(cost_s)} per iteration" if words.known(cost_s) else ""
    return f"{words.clean(finding.rule, 60)}{place}{cost}: {words.clean(finding.title, 200)}"
