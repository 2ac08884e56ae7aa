"""The performance summary as rows, before and after side by side, for terminal and page."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from rich.console import Console, Group
from rich.text import Text

from autotune import words
from autotune.explain.records import Explanation, NsightFacts, PerfSummary
from autotune.report.terminal.layout import bare_table
from autotune.report.text import story
from autotune.results import Result
from autotune.words import SIDES, scaled_words

NOTHING = "–"
TOOLS = ("Nsight",)  # prefixes of notes on external profilers, see autotune.explain.nsight


@dataclass(frozen=True)
class SummaryRow:
    label: str
    cells: tuple[str, ...]  # one per side, in the order of SummaryTable.sides
    note: str = ""  # what the figure means, if its name does not say so


@dataclass(frozen=True)
class SummaryTable:
    sides: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    foot: tuple[str, ...]  # sentences below the table


def result_summary(result: Result) -> SummaryTable | None:
    """The table of a result; None if no side has a summary.

    Below it: what external profilers saw, or why they saw nothing.
    """
    explanation, job = result.explanation, result.observation.job
    sides = explanation.sides.items()
    known = {name: side.summary for name, side in sides if side.summary is not None}
    if not known:
        return None
    summaries = list(known.values())
    names = tuple(
        SIDES.get(name, words.clean(name, 40)) if len(known) > 1 else "now" for name in known
    )
    unit = words.clean(job.sample_unit, 40)
    same_figure = zip(*(_figures(s, unit) for s in summaries), strict=True)
    rows = [_row(*figures) for figures in same_figure if any(f[1] != NOTHING for f in figures)]
    foot = [
        (
            "One process per side, timed before any instrumentation or profiling. The speed-up"
            " comes from the fresh processes, not from the ratio of these."
            if len(known) > 1
            else "Timed in one process, before any instrumentation or profiling."
        )
    ]
    if job.device == "cpu":
        foot.append("Nothing is copied to a device: the job runs on the CPU.")
    elif job.device == "cuda" and all(s.host_to_device_bytes is None for s in summaries):
        foot.append("No copies to the device were seen.")
    return SummaryTable(names, tuple(rows), (*foot, *_tools(explanation)))


def _figures(s: PerfSummary, unit: str) -> list[tuple[str, str, str]]:
    """A label, a cell and a note for every figure; the labels are the same for all summaries."""
    deviation = words.number_words(sqrt(max(s.ips_variance, 0.0)))
    variance = f"{words.number_words(s.ips_variance)} (± {deviation})"
    memory = f"{words.number_words(s.peak_memory_gib)} GiB" if s.peak_memory_gib else NOTHING
    copy_rate = scaled_words(s.host_to_device_bytes_per_s, "B/s")
    return [
        ("reader cost", words.duration_words(s.reader_cost_s), "waiting for a batch"),
        ("batch cost", words.duration_words(s.batch_cost_s), "a whole iteration"),
        ("reader ratio", _percent(s.reader_ratio), ""),
        (f"ips, {unit}/s", words.number_words(s.ips_mean), "mean"),
        ("ips, fastest", words.number_words(s.ips_max), ""),
        ("ips, slowest", words.number_words(s.ips_min), ""),
        ("ips, variance", variance, "and standard deviation"),
        ("steps", f"{s.steps:,} ({s.steps_skipped:,} skipped)", "warm-up is skipped"),
        ("device utilization", _percent(s.device_utilisation), s.utilisation_of),
        ("peak memory", memory, ""),
        ("host to device, per step", scaled_words(s.host_to_device_bytes, "B"), ""),
        ("host to device, rate", copy_rate, "while copying"),
        ("model FLOPs, per step", scaled_words(s.model_flops, "FLOP"), "forward and backward"),
        ("model FLOPs utilization", _percent(s.mfu), s.mfu_of),
    ]


def _row(*figures: tuple[str, str, str]) -> SummaryRow:
    (label, *_), cells, notes = zip(*figures, strict=True)
    said = "; ".join(filter(None, dict.fromkeys(notes)))
    return SummaryRow(label, cells, words.clean(said, 120))


def _percent(share: float | None) -> str:
    if not words.known(share):
        return NOTHING
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def nsight_words(facts: NsightFacts) -> list[str]:
    """What Nsight Systems saw, as sentences."""
    said = []
    if facts.window_s > 0:
        busy, window = facts.busy_s / facts.window_s, words.duration_words(facts.window_s)
        said.append(f"the device was busy {100 * busy:.0f}% of {window}")
    per_step = f", {facts.launches / facts.steps:,.0f} per iteration" if facts.steps else ""
    said.append(f"{words.plural(facts.launches, 'kernel launch', 'kernel launches')}{per_step}")
    if copied := facts.host_to_device_bytes:
        copy_s = facts.host_to_device_s
        rate = f" at {scaled_words(copied / copy_s, 'B/s')}" if copy_s else ""
        said.append(f"{scaled_words(copied, 'B')} copied to the device{rate}")
    return [story.sentence(text) for text in said]


def summary_group(table: SummaryTable) -> Group:
    """The table for a terminal. The console must have markup and emoji off."""
    shown = bare_table(header=len(table.sides) > 1)
    shown.add_column("", no_wrap=True)
    for name in table.sides:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("", style="dim", overflow="fold")
    for row in table.rows:
        shown.add_row(Text(row.label), *(Text(cell) for cell in row.cells), Text(row.note))
    return Group(shown, *(Text(sentence, style="dim") for sentence in table.foot))


def print_result_summary(console: Console, result: Result) -> None:
    """Print the summary of a result, or why there is none."""
    table = result_summary(result)
    why = words.why_not_profiled(result.explanation)
    console.print(Text(why) if table is None else summary_group(table))


def _tools(explanation: Explanation) -> list[str]:
    said = [story.sentence(note) for note in explanation.notes if note.startswith(TOOLS)]
    for name, side in explanation.sides.items():
        of = f", {SIDES.get(name, words.clean(name, 40))}" if len(explanation.sides) > 1 else ""
        if side.nsight_facts is not None:
            said.append(f"Nsight Systems{of}: {' '.join(nsight_words(side.nsight_facts))}")
        if side.counters:
            top = [
                f"{words.clean(c.name, 80)} {_percent(c.compute_share)} and"
                f" {_percent(c.memory_share)}"
                for c in side.counters[:3]
            ]
            said.append(
                f"Nsight Compute{of}, share of the GPU's compute and memory: {'; '.join(top)}."
            )
    return said
