"""``autotune submit job.yaml``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.logs import follow_to_the_end
from autotune.errors import InputError
from autotune.flags import Address, Minutes, Seed, TokenFile, Trials
from autotune.job.load import load_job
from autotune.job.package import Package, survey
from autotune.job.spec import JobSpec
from autotune.service.cluster import Cluster, find_cluster
from autotune.service.runs import Runs
from autotune.service.submission import (
    Reserve,
    Submission,
    check_tracking,
    job_root,
    prepare,
    send,
    whole_node,
)
from autotune.words import plural


def submit(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    address: Address = None,
    token_file: TokenFile = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Files not to send, as in .gitignore; repeatable."),
    ] = None,
    no_gitignore: Annotated[
        bool, typer.Option("--no-gitignore", help="Also send what .gitignore excludes.")
    ] = False,
    no_ship: Annotated[
        bool,
        typer.Option(
            "--no-ship", help="Send nothing: the cluster sees the same files at the same path."
        ),
    ] = False,
    cpus: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=(
                "Cores reserved for the run; 0: run on the head. [default: a whole node; with --gpus"
                " N: none]"
            ),
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=(
                "GPUs reserved for the run; 0: it sees none. [default: a whole node; with --cpus N:"
                " 0]"
            ),
        ),
    ] = None,
    minutes: Minutes = None,
    trials: Trials = None,
    seed: Seed = 0,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue the run of an earlier submission.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Show its output until it ends, then exit with its exit code."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the run's ID and nothing else.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be sent, without contacting the cluster."),
    ] = False,
) -> None:
    """Tune a job on a Ray cluster: send its folder there and run `autotune run` on it.

    The job file is checked first, as `autotune check` does. The study is recorded in the cluster's
    MLflow.
    """
    spec = load_job(job, check=False)  # the program and torch only have to be on the cluster
    check_tracking(spec)
    cluster = find_cluster(address, token_file)
    package = None if no_ship else _package(spec, exclude or [], not no_gitignore)
    reserve = _reserve(cluster, spec, cpus, gpus, ask=not dry_run)
    options = _run_options(minutes, trials, seed)
    if resume is not None and not dry_run:
        resume = Runs(cluster).directory(resume, sent=package is not None)
    submission = prepare(spec, package, reserve, run_options=options, resume=resume or "")
    if dry_run:
        typer.echo("\n".join([submission.entrypoint, *(package.files if package else ())]))
        return
    send(cluster, submission)
    if quiet:
        typer.echo(submission.id)
    else:
        typer.echo(_said(submission, cluster))
    if follow:
        follow_to_the_end(cluster, submission.id)


def _said(submission: Submission, cluster: Cluster) -> str:
    package = submission.package
    sent = (
        "nothing sent, the cluster reads it in place"
        if package is None
        else f"{plural(sum(not f.endswith('/') for f in package.files), 'file')},"
        f" {package.size_mib:.1f} MiB sent"
    )
    return (
        f"{submission.id}: {submission.job} submitted to {cluster.address} ({sent})\n  autotune"
        f" logs {submission.id} --follow"
    )


def _package(spec: JobSpec, exclude: list[str], gitignore: bool) -> Package:
    assert spec.source is not None
    package = survey(job_root(spec), exclude, gitignore=gitignore)
    if spec.source.relative_to(package.root).as_posix() not in package.files:
        raise InputError(
            "the exclude patterns leave out the job file itself",
            where=str(spec.source),
            remedy="change --exclude, .gitignore or .rayignore",
        )
    for name in package.linked_folders:
        typer.echo(f"left out: {name}/ is a link to a folder", err=True)
    return package


def _reserve(
    cluster: Cluster, spec: JobSpec, cpus: float | None, gpus: float | None, *, ask: bool
) -> Reserve:
    """What to reserve for the run.

    With ``executor: ray`` nothing: the run only coordinates, and its sessions take their own
    places.
    """
    hides = gpus == 0 or (bool(cpus) and not gpus)
    if cpus is not None or gpus or spec.executor.kind != "local" or not ask:
        return Reserve(cpus or 0.0, gpus or 0.0, hides)
    cluster.client()  # reports a wrong address or token in our own words
    return whole_node(cluster, gpus=gpus is None)


def _run_options(minutes: float | None, trials: int | None, seed: int) -> list[str]:
    given = {"--minutes": minutes, "--trials": trials, "--seed": seed or None}
    return [
        word for flag, value in given.items() if value is not None for word in (flag, str(value))
    ]
