"""The flags that run, submit and profile share."""

from __future__ import annotations

from typing import Annotated

import typer

Minutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Time budget, instead of the job file's.", show_default=False),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=1, help="Most configurations to try, instead of the job file's.", show_default=False
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the search.")]
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
