"""A run, as the cluster is asked for it: the words of its command, its folder, and the place it
takes.

    exec env -u OMP_NUM_THREADS AUTOTUNE_SUBMISSION=ID autotune run job.yaml --run-dir
    "${AUTOTUNE_RUNS:-autotune-runs}"/ID

The words name files only: values of ``env`` in job.yaml stay in the file, because Ray shows a job's
words, variables and metadata to whoever may look at the cluster. ``env -u``: Ray sets
OMP_NUM_THREADS for every process it starts, to 1 where no CPU is reserved, and the baseline must be
the job as it is. AUTOTUNE_SUBMISSION has the run say at the end of its log how it ended.
"""

from __future__ import annotations

import getpass
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import InputError
from autotune.service.cluster import Cluster
from autotune.service.ending import SUBMISSION
from autotune.service.package import Package

if TYPE_CHECKING:
    from autotune.job.spec import JobSpec

NAME_KEY = "autotune.job"  # metadata: tells our runs from other jobs of the cluster
# Where the cluster's service keeps runs; without it they lie in the job's folder there, which Ray
# clears away one day.
RUNS = '"${AUTOTUNE_RUNS:-autotune-runs}"'
# What a head says that answers already, but has not yet started the process that starts runs
# (ray/dashboard/modules/job/job_head.py).
STILL_STARTING, START_WAIT_S = "No available agent", 60.0
# Ray's own 3 s would kill a run before it has put back what its last trial changed
STOP_WAIT_S = 60


@dataclass(frozen=True)
class Reserve:
    """The part of a node that is the run's alone. Zero: none, and Ray runs the command on the head."""

    cpus: float = 0.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Submission:
    id: str
    job: str
    entrypoint: str
    metadata: Mapping[str, str]
    package: Package | None  # None: the cluster finds the job's folder where it lies here
    reserve: Reserve = field(default_factory=Reserve)


def check_tracking(spec: JobSpec) -> None:
    """Raises:
    InputError: the job records its study in a file, which would stay on the cluster.
    """
    if (spec.tracking.uri or "").startswith("sqlite:"):
        raise InputError(
            "tracking.uri is a file, which would be written on the cluster and stay there",
            where=str(spec.source),
            expected="auto, which takes the service's MLflow, or a server's address",
            remedy="leave tracking.uri out of the job file",
        )


def job_root(spec: JobSpec) -> Path:
    """The folder to send: the one of job.yaml, or of ``workdir`` if that lies around it.

    Raises:
        InputError: job.yaml and ``workdir`` lie apart.
    """
    assert spec.source is not None
    home = spec.source.parent
    if spec.workdir.is_relative_to(home):
        return home
    if home.is_relative_to(spec.workdir):
        return spec.workdir
    raise InputError(
        f"the job runs in {spec.workdir}, which is not below {home}",
        where=str(spec.source),
        expected="one folder that holds both",
        remedy="move the job file there, or use --no-ship where the cluster sees the same files",
    )


def prepare(
    spec: JobSpec,
    package: Package | None,
    reserve: Reserve,
    *,
    run_options: Sequence[str] = (),
    resume: str = "",
) -> Submission:
    """What to ask the cluster for.

    Args:
        run_options: more words for ``autotune run``.
        resume: the ID of an earlier submission whose run directory is carried on with.
    """
    assert spec.source is not None
    number = f"{spec.name}-{time.strftime('%y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    file = str(spec.source if package is None else spec.source.relative_to(package.root))
    words = ["autotune", "run", f"./{file}" if file.startswith("-") else file, *run_options]
    run_dir = f"{RUNS}/{shlex.quote(resume or number)}"
    there = "" if package else f"cd {shlex.quote(str(spec.source.parent))} && "
    entrypoint = (
        f"{there}exec env -u OMP_NUM_THREADS {shlex.quote(f'{SUBMISSION}={number}')}"
        f" {shlex.join(words)} --run-dir {run_dir}"
    )
    return Submission(
        number,
        spec.name,
        entrypoint,
        {NAME_KEY: spec.name, "autotune.user": _user()},
        package,
        reserve,
    )


def whole_node(cluster: Cluster) -> Reserve:
    """All of the cluster's biggest node: runs beside each other on one node would spoil each
    other's times.

    Raises:
        InputError: no node has CPUs to reserve.
    """
    sizes = [Reserve(float(n.get("CPU", 0.0)), float(n.get("GPU", 0.0))) for n in cluster.nodes()]
    working = [size for size in sizes if size.cpus > 0]
    if not working:
        raise InputError(
            f"no node of the cluster at {cluster.address} offers CPUs: no worker has joined it",
            where=cluster.address_from,
            expected="a worker",
            remedy="start one (docker/up.sh --workers 1), or pass --cpus 0 to run on the head",
        )
    return max(working, key=lambda size: (size.gpus, size.cpus))


def send(cluster: Cluster, submission: Submission) -> None:
    """Hand it to the cluster; returns as soon as that has it.

    Raises:
        InputError: the cluster does not answer, does not take the token, or refuses the request.
    """
    client = cluster.client()
    with tempfile.TemporaryDirectory(prefix="autotune-submit-") as folder:
        runtime_env: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}}
        if submission.package is not None:
            archive = Path(folder) / "job.zip"
            submission.package.write(archive)
            runtime_env["working_dir"] = str(archive)
        job = {
            "entrypoint": submission.entrypoint,
            "submission_id": submission.id,
            "runtime_env": runtime_env,
            "metadata": dict(submission.metadata),
            "entrypoint_num_cpus": submission.reserve.cpus or None,
            "entrypoint_num_gpus": submission.reserve.gpus or None,
        }
        try:
            with cluster.answering():
                _once_it_has_started(lambda: client.submit_job(**job))
        except RuntimeError as error:
            raise InputError(
                f"the cluster refuses the run: {last_line(error)}", where=cluster.address
            ) from error


def _once_it_has_started(submit: Callable[[], object]) -> None:
    """A cluster that is still starting has taken nothing in, and is asked again."""
    deadline = time.monotonic() + START_WAIT_S
    while True:
        try:
            submit()
            return
        except RuntimeError as error:
            if STILL_STARTING not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def last_line(error: Exception) -> str:
    """The end of what Ray answers, which is often a whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" .")]
    return lines[-1] if lines else type(error).__name__


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a passwd entry
        return "unknown"
