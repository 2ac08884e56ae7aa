"""Shows a store in MLflow's UI on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

from autotune.errors import InputError
from autotune.run_directory import RUNS
from autotune.secrets import MASK
from autotune.tracking.spool import SpoolPaths
from autotune.tracking.stores import EXPECTED, Store, resolve
from autotune.tracking.sync import target_of

PORTS_TRIED = 20
SPOOLS = "*/tracking/spool.jsonl"


def store_to_show(run_dir: Path | None, uri: str | None) -> Store:
    """The store of ``uri``, else of ``run_dir``, else of the runs in the current directory.

    Raises:
        InputError: there is none, or nothing has been recorded in it yet.
    """
    where = "--uri" if uri else str(run_dir or RUNS)
    if run_dir is not None and uri is None:
        uri = target_of(run_dir)[0]
        if uri is None:
            raise InputError(
                "this run was recorded without MLflow",
                where=where,
                remedy=f"autotune sync {run_dir} --uri auto, then try again",
            )
    store = resolve(uri or "auto", run_dir or RUNS / "any", where)
    if store is None or MASK in store.uri:
        raise InputError("no store to show", where=where, expected=EXPECTED, remedy="pass --uri")
    if store.database is not None and not store.database.is_file():
        remedy = (
            f"autotune sync {run_dir}"
            if run_dir
            else "run `autotune run` first, or name a run directory or --uri"
        )
        raise InputError(f"nothing is recorded in {store.database} yet", where=where, remedy=remedy)
    return store


def pages_to_open(run_dir: Path | None, store: Store) -> dict[str, str]:
    """Run -> page of the UI with its trials in charts; of ``run_dir``, else of all runs here.

    The newest run comes first; those that are not finished have none.
    """
    runs = [run_dir] if run_dir else [spool.parents[1] for spool in RUNS.glob(SPOOLS)]
    found: dict[str, tuple[float, str]] = {}
    for run in runs:
        # not recorded, or not sent there yet
        with contextlib.suppress(InputError, OSError, ValueError, KeyError, TypeError):
            experiment = target_of(run)[1] or run.resolve().name
            cursor = SpoolPaths(run).cursor(store.uri, experiment)
            if page := json.loads(cursor.read_text())["page"]:
                found[run.name] = cursor.stat().st_mtime, page
    return {run: page for run, (_, page) in sorted(found.items(), key=lambda at: -at[1][0])}


def server_command(store: Store, port: int) -> tuple[list[str], dict[str, str]]:
    """argv and environment of an MLflow server for ``store`` on 127.0.0.1.

    One worker and no job runners: 0.5 GB instead of 1.3.
    """
    words = f"-m mlflow server --host 127.0.0.1 --port {port} --workers 1"
    argv = [sys.executable, *words.split()]
    if store.database is not None:
        argv += ["--artifacts-destination", str(store.database.parent / "mlartifacts")]
    env = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": store.uri,  # on the command line all could see its password
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    return argv, env


def free_port(first: int) -> int:
    """``first``, or the next free port above it.

    Raises:
        InputError: none of the next few is free.
    """
    last = min(first + PORTS_TRIED, 65536)
    for port in range(first, last):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise InputError(
        f"no free port from {first} to {last - 1}", where="--port", remedy="choose another --port"
    )
