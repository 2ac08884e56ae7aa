"""``autotune init -- COMMAND…``"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from autotune.errors import AutotuneError, InputError
from autotune.job.load import clean_name, load_job
from autotune.job.template import job_yaml, suggest_name, take_variables
from autotune.run_directory import check_run_dir
from autotune_trials.paths import write_where_told


def init(
    command: Annotated[
        list[str],
        typer.Argument(help="The command that starts the job, after --.", metavar="-- COMMAND..."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "job.yaml"
    ),
    name: Annotated[
        str, typer.Option(help="The job's name. [default: that of the script or folder]")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a first job.yaml, with comments, for the command that starts the job.

    Example: autotune init -- python train.py --epochs 5
    """
    if output.is_dir():
        raise InputError(
            "it is a directory",
            where=str(output),
            expected="a file to write",
            remedy=f"-o {output / 'job.yaml'}",
        )
    if output.exists() and not force:
        raise InputError(
            "the file exists",
            where=str(output),
            expected="a new file",
            remedy="--force replaces it, -o FILE writes another",
        )
    if name and clean_name(name) != name:
        expected = "letters, digits, dot, dash and underscore"
        raise InputError(
            f"'{name}' cannot be a job's name",
            where="--name",
            expected=expected,
            remedy=f"--name {clean_name(name) or 'job'}",
        )
    folder = output.absolute().parent
    if not folder.is_dir():
        raise InputError(
            f"no directory {folder}",
            where=str(output),
            expected="a file in a directory that exists",
        )
    if len(command) == 1 and len(command[0].split()) > 1 and shutil.which(command[0]) is None:
        raise InputError(
            "the command is one quoted word",
            where="COMMAND",
            expected="the words as you type them to start the job: autotune init -- python train.py",
            remedy="leave out the quotes around the command; a line for a shell goes into the file,"
            " as 'command', with 'shell: true'",
        )
    variables, words = take_variables(command)
    if not any(word.strip() for word in words):
        raise InputError(
            "the command is empty", where="COMMAND", expected="what you type to start the job"
        )
    check_run_dir(folder, "--output")
    workdir = os.path.relpath(Path.cwd(), folder.resolve())
    name = name or suggest_name(words, Path.cwd())
    write_where_told(output, job_yaml(words, name, workdir, variables))
    if not output.is_file():  # a pipe, which may be standard output
        return
    typer.echo(f"wrote {output}")
    try:
        load_job(output)
    except AutotuneError as trouble:
        # Keep the file: the command may be right on the machine where the job is meant to run.
        typer.echo(f"the command does not run here yet:\n{trouble}")
        return
    typer.echo(f"next: autotune check {output}, then autotune run {output}")
