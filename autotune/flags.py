"""The arguments that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer


def finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


TunedRun = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run's directory, its name under autotune-runs/, or a tuned.yaml."
    ),
]
FinishedRun = Annotated[
    str, typer.Argument(help="A run's directory, its name under autotune-runs/, or a result.json.")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        callback=finite,
        help="Time budget, instead of the job file's; a first proof is always finished.",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of configurations to try, instead of the job file's."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the search.")]
Nsys = Annotated[
    bool,
    typer.Option(
        "--nsys",
        help="Also capture the profiled window with Nsight Systems, where it is installed.",
    ),
]
Ncu = Annotated[
    bool,
    typer.Option(
        "--ncu", help="Also measure the top kernels with Nsight Compute, where it is installed."
    ),
]
# of submit, jobs, logs and stop
Address = Annotated[
    str | None,
    typer.Option(
        help=(
            "The cluster's dashboard. [default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS or"
            " http://127.0.0.1:8265]"
        )
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help=(
            "File with the cluster's token. [default: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or"
            " ~/.ray/auth_token]"
        )
    ),
]
RunId = Annotated[
    str, typer.Argument(metavar="ID", help="The run's ID, as `autotune submit` printed it.")
]
