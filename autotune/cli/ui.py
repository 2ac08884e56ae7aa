"""``autotune ui``"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.run_directory import JOURNAL, find_directory
from autotune.tracking.ui import free_port, server_command, store_to_show


def ui(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run's directory, or its name under autotune-runs/. [default: all runs there]"
        ),
    ] = None,
    uri: Annotated[
        str | None, typer.Option(help="An MLflow store, instead of a run's own.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Compare trials in MLflow's web UI. It is served to this machine only; Ctrl-C stops it."""
    store = store_to_show(run and (find_directory(run, JOURNAL) or run), uri)
    if store.kind == "http":
        typer.echo(f"The record is on a server that is already running: {store.shown}")
        return
    port = free_port(port)
    typer.echo(f"MLflow: http://127.0.0.1:{port}  (ready in a few seconds; Ctrl-C stops it)")
    sys.stdout.flush()
    argv, env = server_command(store, port)
    # MLflow's server forwards signals to its own processes, so it can replace this one.
    os.execve(argv[0], argv, env)
