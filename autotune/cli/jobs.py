"""``autotune jobs``"""

from __future__ import annotations

import time
from dataclasses import asdict
from json import dumps
from typing import Annotated

import typer

from autotune.flags import Address, TokenFile
from autotune.service.cluster import find_cluster
from autotune.service.runs import Run, Runs


def jobs(
    address: Address = None,
    token_file: TokenFile = None,
    everyones: Annotated[
        bool, typer.Option("--all", help="Include jobs that autotune did not submit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the runs that were submitted to a cluster, newest first."""
    runs = Runs(find_cluster(address, token_file)).known(others=everyones)
    if json:
        typer.echo(dumps([asdict(run) for run in runs], indent=2))
    else:
        typer.echo(_table(runs) if runs else "no runs")


def _table(runs: list[Run]) -> str:
    rows = [("ID", "STATUS", "SUBMITTED", "TOOK", "BY"), *(_row(run) for run in runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def _row(run: Run) -> tuple[str, str, str, str, str]:
    code = f" ({run.exit_code})" if run.exit_code else ""
    submitted = (
        "" if run.start_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start_s))
    )
    # the cluster's clock may be ahead of ours
    took_s = 0 if run.start_s is None else max(0, int((run.end_s or time.time()) - run.start_s))
    took = f"{took_s // 3600}:{took_s // 60 % 60:02}:{took_s % 60:02}"
    return run.id, f"{run.status.lower()}{code}", submitted, took, run.user
