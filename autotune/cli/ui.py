"""``autotune ui``"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.run_directory import JOURNAL, find_directory
from autotune.tracking.ui import free_port, pages_to_open, server_command, store_to_show

MOST_PAGES = 10


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
    run_dir = run and (find_directory(run, JOURNAL) or run)
    store = store_to_show(run_dir, uri)
    pages = pages_to_open(run_dir, store)
    if store.kind == "http":
        server = store.shown.rstrip("/")
        typer.echo(f"The record is on a server that is already running: {server}")
    else:
        port = free_port(port)
        server = f"http://127.0.0.1:{port}"
        typer.echo(f"MLflow: {server}  (ready in a few seconds; Ctrl-C stops it)")
    for name, page in list(pages.items())[:MOST_PAGES]:
        typer.echo(f"  the trials of {name}: {server}/{page}")
    if store.kind == "http":
        return
    sys.stdout.flush()
    argv, env = server_command(store, port)
    # MLflow's server forwards signals to its own processes, so it can replace this one.
    os.execve(argv[0], argv, env)
