"""``autotune stop ID``"""

from __future__ import annotations

import typer

from autotune.flags import Address, RunId, TokenFile
from autotune.service.cluster import find_cluster
from autotune.service.runs import Runs


def stop(id: RunId, address: Address = None, token_file: TokenFile = None) -> None:
    """End a submitted run. Its measurements are kept: `autotune submit JOB.yaml --resume ID` continues from
    them.
    """
    runs = Runs(find_cluster(address, token_file))
    before = runs.find(id)
    if before.ended:
        typer.echo(f"{id} has already ended: {before.status.lower()}")
        return
    after = runs.stop(id)
    waiting = "waiting for a node; it will stop when it gets one"
    typer.echo(f"{id}: {after.status.lower() if after.ended else waiting}")
