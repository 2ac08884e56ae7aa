"""``autotune sync RUN``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.run_directory import JOURNAL, find_directory
from autotune.tracking.sync import sync as send
from autotune.words import plural


def sync(
    run: Annotated[
        Path, typer.Argument(help="A run's directory, or its name under autotune-runs/.")
    ],
    uri: Annotated[
        str | None, typer.Option(help="Where to send it. [default: the run's own store]")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="MLflow experiment. [default: the run's own]")
    ] = None,
) -> None:
    """Send a run's record to MLflow. What is already there is not sent again.

    Use it after a run with --offline or when the server was down, or with --uri to copy a run to
    another server.
    """
    report = send(find_directory(run, JOURNAL) or run, uri, experiment)
    for path in report.missing:
        typer.echo(f"left out: {path} no longer exists", err=True)
    if report.sent:
        typer.echo(
            f"{plural(report.sent, 'event')} sent to {report.store.shown}, experiment {report.experiment};"
            " the record there is complete"
        )
    else:
        typer.echo(
            f"{report.store.shown} already has the complete record, experiment {report.experiment}"
        )
