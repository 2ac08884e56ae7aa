"""``autotune show RUN``: the closing screen of a finished run, or any part of its report.

Everything is read from the run's result.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autotune import __version__
from autotune.errors import InputError
from autotune.flags import FinishedRun
from autotune.report.result_file import json_text, load_result, to_json
from autotune.report.sarif import sarif as sarif_text
from autotune.report.terminal.closing import print_closing, print_trials
from autotune.report.terminal.gains import print_gains
from autotune.report.terminal.layout import PLAIN_WIDTH, text_of
from autotune.report.text.findings import findings_group
from autotune.report.text.operators import print_operators
from autotune.report.text.summary import print_result_summary
from autotune.results import Result
from autotune.run_directory import find_result
from autotune.words import for_encoding

# the parts, in the order of the page
ORDER = ["closing", "gains", "summary", "findings", "operators", "trials"]
# titles for parts that do not print one themselves
TITLES = {"summary": "Performance summary", "findings": "All findings", "trials": "What was tried"}


def show(
    run: FinishedRun,
    trials: Annotated[
        bool, typer.Option("--trials", help="Print every configuration tried.")
    ] = False,
    findings: Annotated[
        bool,
        typer.Option(
            "--findings",
            help="Print the findings: what costs time in the job, where, and how much.",
        ),
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Print the performance summary, before and after.")
    ] = False,
    operators: Annotated[
        bool,
        typer.Option(
            "--operators", help="Print the operators that take the most time, and their roofline."
        ),
    ] = False,
    gains: Annotated[
        bool,
        typer.Option("--gains", help="Print how the gain builds up, and which knobs mattered."),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print everything, in the order of the report.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print result.json.")] = False,
    sarif: Annotated[
        bool,
        typer.Option("--sarif", help="Print the findings as SARIF, for editors and code scanning."),
    ] = False,
) -> None:
    """Show the result of a finished run."""
    parts = {
        "summary": summary,
        "findings": findings,
        "operators": operators,
        "gains": gains,
        "trials": trials,
    }
    alone = [f"--{name}" for name, wanted in (("json", json), ("sarif", sarif)) if wanted]
    others = [f"--{name}" for name, wanted in (("all", everything), *parts.items()) if wanted]
    if alone and len(alone) + len(others) > 1:
        raise InputError(
            f"{' and '.join([*others, *alone][:2])} cannot be combined",
            where="autotune show",
            expected="one of them",
        )
    path = find_result(run)
    result = load_result(path)
    if sarif:
        workdir = Path(str(result.environment.get("workdir") or path.parent))
        typer.echo(sarif_text(result.explanation.findings, __version__, workdir).rstrip("\n"))
        return
    if json:
        typer.echo(json_text(to_json(result)).rstrip("\n"))
        return
    wanted = [name for name, asked in parts.items() if asked]
    _print(result, path.parent, ORDER if everything else wanted or ["closing"])


def _print(result: Result, run_dir: Path, parts: Sequence[str]) -> None:
    printers: dict[str, Callable[[Console], None]] = {
        "closing": lambda console: print_closing(console, result, run_dir),
        "gains": lambda console: print_gains(console, result),
        "summary": lambda console: print_result_summary(console, result),
        "findings": lambda console: console.print(findings_group(result)),
        "operators": lambda console: print_operators(console, result.explanation, run_dir),
        "trials": lambda console: print_trials(console, result),
    }

    def write(console: Console) -> None:
        for index, part in enumerate(sorted(parts, key=ORDER.index)):
            if index:
                console.print()
            if len(parts) > 1 and part in TITLES:
                console.print(TITLES[part], style="bold")
            printers[part](console)

    print_captured(write)


def print_captured(write: Callable[[Console], None], piped_width: int = PLAIN_WIDTH) -> None:
    """Print what ``write`` puts on a console, in characters that this terminal or pipe can show."""
    width = None if sys.stdout.isatty() else piped_width
    text = text_of(write, width, terminal=True)
    typer.echo(for_encoding(text, sys.stdout.encoding))
