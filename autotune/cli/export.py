"""``autotune export RUN --format …``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run directory or a tuned.yaml.", show_default=False)],
    form: Annotated[str, typer.Option("--format", "-f", help="yaml, shell, torchrun, accelerate or python.")] = "yaml",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: print it.", show_default=False)] = None,
) -> None:
    """Write a run's tuned settings in another form: a script, a launcher's command line, or code to paste.

    Example: autotune export autotune-runs/digits --format shell -o train-tuned.sh
    """
    from autotune.errors import InputError
    from autotune.export.formats import FORMATS
    from autotune.export.load import load_tuned
    from autotune.job.mistakes import listing, nearest
    from autotune_trials.paths import publish

    if form not in FORMATS:
        close = nearest(form, FORMATS)
        remedy = f"did you mean '{close}'?" if close else ""
        raise InputError(f"no format '{form}'", where="--format", expected=listing(FORMATS), remedy=remedy)
    text = FORMATS[form].write(load_tuned(run))
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        publish(output, text)
        if FORMATS[form].executable:
            output.chmod(output.stat().st_mode | 0o111)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(output), expected="a file in a directory that exists") from None
    typer.echo(f"{output}: {FORMATS[form].summary}")
