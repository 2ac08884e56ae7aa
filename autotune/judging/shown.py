"""A judgement for people: in the terminal, and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from autotune import words
from autotune.explain.records import Finding
from autotune.judging.records import Judgement, SideRecord
from autotune.report.terminal.compare import OPERATOR_HEADS, finding_words, operator_row, phase_rows
from autotune.report.terminal.layout import indented, section, table
from autotune.report.text.comparison import apart, changed_operators
from autotune.words import duration_words

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
LEAST_SHARE = 0.01  # of A's iteration: operators that changed by less are not shown


def headline(it: Judgement) -> str:
    """``B is slower: 0.95× (0.93 to 0.97), loss unchanged``"""
    said = {"same": "B is as fast as A", "undecided": "The speed is undecided"}
    speed = said.get(it.speed, f"B is {it.speed}")
    return f"{speed}: {words.interval_words(it.speedup)}, loss {it.loss}"


def print_judgement(console: Console, it: Judgement) -> None:
    """Print it. ``console`` must have markup and emoji off."""
    for side in it.sides:
        what = f"{side.what}: {words.clean(side.command)}"
        console.print(Text.assemble((f"{side.name}  ", "bold"), what))
    console.print()
    console.print(Text(headline(it), style="bold"))
    for said in _reasons(it):
        console.print(indented(Text(said)))
    for title, (heads, rows) in _tables(it):
        section(console, title, table(heads, rows))
    for title, findings in _findings(it):
        section(console, title, *(Text(finding_words(f)) for f in findings))
    console.print()
    console.print(Text(_footnote(it), style="dim"))


def markdown(it: Judgement) -> str:
    """For a comment on a pull request."""
    lines = [f"### autotune: {headline(it)}", ""]
    for side in it.sides:
        lines.append(f"- **{side.name}** {_escaped(side.what)}: `{words.clean(side.command)}`")
    lines += [f"- {_escaped(said)}" for said in _reasons(it)]
    for title, (heads, rows) in _tables(it):
        lines += ["", f"**{title}**", "", _row(heads), _row(["---"] * len(heads))]
        lines += [_row(map(_escaped, row)) for row in rows]
    for title, findings in _findings(it):
        lines += ["", f"**{title}**", "", *(f"- {_escaped(finding_words(f))}" for f in findings)]
    return "\n".join([*lines, "", f"<sub>{_escaped(_footnote(it))}</sub>"]) + "\n"


def _reasons(it: Judgement) -> list[str]:
    return [
        f"speed {it.speed}: {it.speed_reason}",
        f"loss {it.loss}: {words.clean(it.loss_verdict.reason)}",
    ]


def _tables(it: Judgement) -> Iterable[tuple[str, Table]]:
    a, b = it.sides
    memory = ("peak memory", *(f"{side.peak_memory_gib:.2f} GiB" for side in it.sides))
    yield "One iteration", (("", "A", "B"), [*phase_rows([a.anatomy, b.anatomy]), memory])
    operators = changed_operators(_times_s(a), _times_s(b))
    shown = [o for o in operators if abs(o.b_s - o.a_s) >= LEAST_SHARE * a.anatomy.iteration_s]
    if shown and it.speed in ("faster", "slower"):
        title = "Operators that changed most, per profiled iteration"
        yield title, (OPERATOR_HEADS, [operator_row(o) for o in shown])


def _times_s(side: SideRecord) -> dict[str, float]:
    """Seconds of each operator per profiled iteration, including the profiler's own cost."""
    found: dict[str, float] = {}
    it = side.profiled
    if it is not None and it.profiled_steps:
        for row in it.operators:
            found[row.name] = found.get(row.name, 0.0) + row.self_time_s / it.profiled_steps
    return found


def _findings(it: Judgement) -> Iterable[tuple[str, tuple[Finding, ...]]]:
    a, b = it.sides
    only = apart(a.findings, b.findings)
    for side, findings in zip(it.sides, only, strict=True):
        if findings:
            yield f"Found in {side.name} only", findings


def _footnote(it: Judgement) -> str:
    machine = it.environment.get("machine", {})
    where = machine.get("device_name") or machine.get("cpu_model", "")
    how = ", alternating in slices," if it.interleaved else ""
    return (
        f"{it.pairs} pairs of fresh processes{how} in {duration_words(it.wall_s)} on {where},"
        f" {_software(it)}. "
        "The interval is 95%. An unchanged loss is the same early trajectory "
        f"({it.loss_verdict.steps} steps), not the same final quality."
    )


def _software(it: Judgement) -> str:
    """``torch 2.7.1`` if both sides have it, ``torch 2.7.1 (A), 2.8.0 (B)`` if not.

    Python is named only where it differs.
    """
    a, b = it.sides
    said = []
    for name, of_a, of_b in (
        ("torch", a.torch_version, b.torch_version),
        ("Python", a.python_version, b.python_version),
    ):
        if of_a != of_b:
            said.append(f"{name} {of_a} (A), {of_b} (B)")
        elif name == "torch":
            said.append(f"{name} {of_a}")
    return ", ".join(said)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Escape ``text`` for Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#" else c for c in text)
