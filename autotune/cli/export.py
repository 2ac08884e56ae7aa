"""``autotune export RUN --format …``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.disk import writing
from autotune.export.formats import FORMATS, format_named
from autotune.export.load import load_tuned
from autotune.flags import TunedRun
from autotune_trials.paths import write_where_told

HELP = "; ".join(f"{f.name}: {f.summary}" for f in FORMATS.values()) + "."


def export(
    run: TunedRun,
    form: Annotated[str, typer.Option("--format", "-f", help=HELP)] = "yaml",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. [default: print it]")
    ] = None,
) -> None:
    """Write a run's tuned settings in another form: a script, a launcher command line, a cluster
    job, or a patch for your own source.

    Example: autotune export digits --format diff -o tuned.diff
    """
    chosen = format_named(form)
    text = chosen.write(load_tuned(run))
    if output is None:
        typer.echo(text, nl=False)
        return
    with writing(str(output)):
        write_where_told(output, text)
        if not output.is_file():  # a pipe, which may be standard output
            return
        if chosen.executable:
            output.chmod(output.stat().st_mode | 0o111)
    typer.echo(f"{output}: {chosen.summary}")
    remark = chosen.remark(text)
    if remark:
        typer.echo(remark)
