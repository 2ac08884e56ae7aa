"""``autotune run job.yaml``: tune the job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from autotune.errors import InputError
from autotune.explain.nsight import NCU, NSYS, Tool
from autotune.flags import Minutes, Ncu, Nsys, Seed, Trials
from autotune.job.load import load_job
from autotune.run_directory import RUNS, check_run_dir
from autotune.running import tune_job


def run(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Directory for all files of this run. [default: autotune-runs/<name>]"),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help=(
                "Start a new run: prove the recorded answer again, or search if there is none (with"
                " --no-history, always search). An earlier run is moved aside, not deleted."
            ),
        ),
    ] = False,
    minutes: Minutes = None,
    trials: Trials = None,
    seed: Seed = 0,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Record locally only; `autotune sync` sends it to MLflow later."
        ),
    ] = False,
    no_history: Annotated[
        bool,
        typer.Option(
            "--no-history",
            help="Ignore the history of earlier runs, and do not add this one to it.",
        ),
    ] = False,
    store: Annotated[
        Path | None, typer.Option(help="The history file. [default: see `autotune history --help`]")
    ] = None,
    nsys: Nsys = False,
    ncu: Ncu = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the closing screen only.")
    ] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of a live table.")
    ] = False,
) -> None:
    """Find the fastest settings for a training job, prove them, and write tuned.yaml.

    Running the same command again resumes an interrupted run.
    """
    if quiet and json_lines:
        raise InputError(
            "--quiet and --json cannot be combined", where="autotune run", expected="one of them"
        )
    spec = load_job(job)
    budget = replace(
        spec.budget, minutes=minutes or spec.budget.minutes, trials=trials or spec.budget.trials
    )
    spec = replace(spec, budget=budget)
    directory = (run_dir or RUNS / spec.name).absolute()
    check_run_dir(directory)
    kind = "quiet" if quiet else "json" if json_lines else "auto"
    tools = tools_asked(nsys, ncu)
    if tools and spec.traces == "none":
        # a profiler that was asked for needs something to capture
        spec = replace(spec, traces="finalists")
    tune_job(
        spec,
        directory,
        fresh=fresh,
        seed=seed,
        offline=offline,
        progress_kind=kind,
        tools=tools,
        history=not no_history,
        store=store,
    )


def tools_asked(nsys: bool, ncu: bool) -> tuple[Tool, ...]:
    """The external profilers for the flags ``--nsys`` and ``--ncu``."""
    return tuple(tool for tool, wanted in ((NSYS, nsys), (NCU, ncu)) if wanted)
