"""The flags that submit, jobs, logs and stop share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
