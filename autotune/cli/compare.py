"""``autotune compare RUN_A RUN_B``: two finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.show import print_captured
from autotune.disk import writing
from autotune.errors import InputError
from autotune.flags import FinishedRun
from autotune.report.page.compare import write_comparison
from autotune.report.result_file import load_result
from autotune.report.terminal.compare import print_comparison
from autotune.report.text.comparison import compare as compare_results
from autotune.run_directory import find_result


def compare(
    run_a: FinishedRun,
    run_b: Annotated[str, typer.Argument(help="The other run.")],
    html: Annotated[Path | None, typer.Option(help="Also write the comparison as a page.")] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Compare runs even if their hardware, torch or commands differ."
        ),
    ] = False,
) -> None:
    """Compare two finished runs: verdicts, knobs, times, operators and findings.

    Runs with different hardware, torch versions or commands are refused, because their times say
    nothing about the settings.

    Example: autotune compare digits.1 digits --html compare.html
    """
    paths = [find_result(run) for run in (run_a, run_b)]
    if paths[0].resolve() == paths[1].resolve():
        raise InputError("both are the same run", where=f"{run_a} and {run_b}", expected="two runs")
    results = [load_result(path) for path in paths]
    comparison = compare_results(*results)
    if comparison.differences and not anyway:
        raise InputError(
            "these runs differ, so their figures cannot be compared: "
            + "; ".join(comparison.differences),
            where=f"{run_a} and {run_b}",
            expected="two runs of the same command, on the same hardware, with the same torch",
            remedy="pass --anyway to compare them regardless",
        )
    print_captured(lambda console: print_comparison(console, comparison))
    if html is not None:
        with writing(str(html)):
            write_comparison(comparison, html)
        typer.echo(f"page: {html}")
