"""``autotune logs ID``"""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.errors import Interrupted
from autotune.flags import Address, RunId, TokenFile
from autotune.service.cluster import Cluster, find_cluster
from autotune.service.runs import Runs

WAITING = "(waiting for a free node)"


def logs(
    id: RunId,
    address: Address = None,
    token_file: TokenFile = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Keep printing until the run ends, then exit with its exit code."
        ),
    ] = False,
) -> None:
    """Show the output of a submitted run."""
    cluster = find_cluster(address, token_file)
    if follow:
        follow_to_the_end(cluster, id)
        return
    runs = Runs(cluster)
    run = runs.find(id)
    typer.echo(runs.log(id), nl=False)
    if run.status == "PENDING":
        typer.echo(WAITING, err=True)


def follow_to_the_end(cluster: Cluster, id: str) -> None:
    """Print the run's output as it arrives; exit with the run's exit code.

    Raises:
        Interrupted: Ctrl-C. The run continues.
    """
    runs = Runs(cluster)
    if runs.find(id).status == "PENDING":
        typer.echo(WAITING, err=True)
    try:
        run = runs.follow(id, lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt:
        raise Interrupted(
            f"no longer following; the run continues\n  autotune logs {id} --follow\n  autotune stop"
            f" {id}"
        ) from None
    if run.status != "SUCCEEDED":
        typer.echo(f"{id}: {run.status.lower()}. {run.message}".rstrip(), err=True)
        raise typer.Exit(run.exit_code or (130 if run.status == "STOPPED" else 1))
