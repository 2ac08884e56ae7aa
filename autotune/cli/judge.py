"""``autotune judge A B``: is B faster, slower or the same, and does it train the same way?"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from autotune import __version__
from autotune.cli.show import print_captured
from autotune.disk import writing
from autotune.errors import InputError
from autotune.flags import finite
from autotune.judging.conditions import Condition, exit_code, parse_condition
from autotune.judging.records import Judgement
from autotune.judging.refs import checked_out
from autotune.judging.reports import junit
from autotune.judging.run import check_loss_class, judge_job
from autotune.judging.shown import markdown, print_judgement
from autotune.judging.sides import Change, Side, changed, common, load_side
from autotune.report.result_file import json_text
from autotune.report.sarif import sarif
from autotune.run_directory import RUNS, check_run_dir

FAIL_IF = "slower[:2%], faster[:2%], not-same or loss-changed: exit with 10. Repeatable."


def judge(
    a: Annotated[
        Path,
        typer.Argument(
            help="A job file, a tuned.yaml, a run's directory or its name under autotune-runs/."
        ),
    ],
    b: Annotated[
        Path | None, typer.Argument(help="The same for B; without it, B is A with a change.")
    ] = None,
    b_command: Annotated[str, typer.Option(help="B's command.")] = "",
    b_env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Environment variable for B; repeatable."),
    ] = None,
    b_python: Annotated[
        Path | None, typer.Option(help="B's Python, from another environment.")
    ] = None,
    base_ref: Annotated[str, typer.Option(help="A is the job in this commit.")] = "",
    head_ref: Annotated[str, typer.Option(help="B is the job in this commit.")] = "HEAD",
    fail_if: Annotated[list[str] | None, typer.Option(metavar="CONDITION", help=FAIL_IF)] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            callback=finite,
            help="Time budget. [default: 10, or the job file's if it is smaller]",
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=0.5,
            callback=finite,
            help="Speeds within this share of each other count as the same (0.02: 2%).",
        ),
    ] = 0.02,
    loss: Annotated[
        str,
        typer.Option(
            help=(
                "How B's loss may differ: exact, rounding, random-stream or statistical. [default:"
                " as B's knobs may change it, at least rounding]"
            )
        ),
    ] = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Directory for all files. [default: autotune-runs/<name>-judge]"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an earlier judgement is moved aside.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write a page for a pull request.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write B's findings as SARIF.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the judgement as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the judgement only.")] = False,
) -> None:
    """Judge a change: is B faster, slower or the same, and does it train the same way?

    Both run in fresh processes, alternating. Nothing is searched. Running the same command again
    resumes.

    Examples:

    autotune judge job.yaml tuned.yaml

    autotune judge job.yaml --base-ref main --fail-if slower:2% --fail-if loss-changed

    autotune judge job.yaml --b-python /path/to/new/venv/bin/python

    Exit codes: 0 judged, 10 a --fail-if condition holds, 11 undecided.
    """
    conditions = [parse_condition(text) for text in fail_if or []]
    check_loss_class(loss, "--loss")
    places = {"markdown": markdown, "junit": junit, "sarif": sarif}
    for kind, path in places.items():
        _check_writable(f"--{kind}", path)
    with ExitStack() as stack:
        change = Change(b_command, b_env or (), b_python)
        sides, directory = _sides(stack, a, b, change, base_ref, head_ref, minutes, run_dir)
        kind = "quiet" if quiet or json else "auto"
        it = judge_job(sides, directory, margin=margin, loss=loss, fresh=fresh, progress_kind=kind)
    _write(it, conditions, places)
    if json:
        typer.echo(json_text(it).rstrip())
    else:
        print_captured(lambda console: print_judgement(console, it))
        typer.echo(f"all files: {directory}")
    raise typer.Exit(exit_code(it, conditions))


def _sides(
    stack: ExitStack,
    a: Path,
    b: Path | None,
    change: Change,
    base: str,
    head: str,
    minutes: float | None,
    run_dir: Path | None,
) -> tuple[tuple[Side, Side], Path]:
    """Both sides, and the judgement's directory. Worktrees exist as long as ``stack``."""
    given = [w for w, is_given in (("B", b), ("--b-…", change), ("--base-ref", base)) if is_given]
    if len(given) != 1:
        raise InputError(
            f"{' and '.join(given)} cannot be combined"
            if given
            else "there is nothing to compare A with",
            where="autotune judge",
            expected="a second file, or --b-command, --b-env, --b-python, or --base-ref",
        )
    first = load_side("A", a)
    directory = (run_dir or RUNS / f"{first.spec.name}-judge").absolute()
    check_run_dir(directory)
    if base:
        folder = directory.with_name(f"{directory.name}-worktrees")
        first, second = stack.enter_context(checked_out(first, (base, head), folder, _warn))
    else:
        second = changed(first, change) if b is None else load_side("B", b)
    return common(first, second, minutes), directory


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def _check_writable(option: str, path: Path | None) -> None:
    """Check an output path before minutes are spent.

    Raises:
        InputError: no file can be written there.
    """
    if path is None:
        return
    writable = os.access(path if path.exists() else path.parent, os.W_OK)
    if path.is_dir() or not path.parent.is_dir() or not writable:
        raise InputError(
            "cannot be written",
            where=f"{option} {path}",
            expected="a file in a directory that exists",
        )


def _write(it: Judgement, conditions: list[Condition], places: dict[str, Path | None]) -> None:
    """Write the reports that were asked for.

    Raises:
        InputError: a file cannot be written.
    """
    texts = {
        "markdown": lambda: markdown(it),
        "junit": lambda: junit(it, conditions),
        "sarif": lambda: sarif(it.sides[1].findings, __version__),
    }
    for kind, path in places.items():
        if path is not None:
            with writing(f"--{kind} {path}"):
                path.write_text(texts[kind](), encoding="utf-8")
