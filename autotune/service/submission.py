"""A run as it is submitted to the cluster: its command, its folder, and what it reserves.

    exec env -u OMP_NUM_THREADS AUTOTUNE_SUBMISSION=ID AUTOTUNE_JOB_NAME=NAME autotune run job.yaml
    --run-dir "${AUTOTUNE_RUNS:-autotune-runs}"/ID

The command names only files: values of ``env`` in job.yaml stay in the file, because Ray shows a
job's command, variables and metadata to anyone who may look at the cluster. ``env -u``: Ray sets
OMP_NUM_THREADS for every process it starts, to 1 where no CPU is reserved, but the baseline must be
the unchanged job. AUTOTUNE_SUBMISSION makes the run report at the end of its log how it ended;
AUTOTUNE_JOB_NAME names a job that would be named after its folder, which Ray calls otherwise. A run
that reserves cores and no GPUs gets CUDA_VISIBLE_DEVICES= too: Ray would show it all GPUs of its
node, other runs' among them.
"""

from __future__ import annotations

import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.disk import disk_errors_as_input_errors
from autotune.errors import InputError, last_line
from autotune.job.load import NAME_VARIABLE
from autotune.job.package import Package
from autotune.service.cluster import Cluster
from autotune.service.ending import SUBMISSION
from autotune.words import user_name

if TYPE_CHECKING:
    from autotune.job.spec import JobSpec

NAME_KEY = "autotune.job"  # metadata: distinguishes our runs from other jobs of the cluster
DIRECTORY_KEY = "autotune.run_dir"  # the first of the runs that continue each other
# Where the cluster's service keeps runs; without it they are in the job's folder there, which Ray
# deletes eventually.
RUNS = '"${AUTOTUNE_RUNS:-autotune-runs}"'
# What a head says that already answers, but has not yet started the process that starts runs
# (ray/dashboard/modules/job/job_head.py).
STILL_STARTING, START_WAIT_S = "No available agent", 60.0
# Ray's default of 3 s would kill a run before it has restored what its last trial changed
STOP_WAIT_S = 60


@dataclass(frozen=True)
class Reserve:
    """The part of a node reserved for the run. Zero: none, and Ray runs the command on the head.

    ``hides_gpus``: the run sees none, because it asked for cores only.
    """

    cpus: float = 0.0
    gpus: float = 0.0
    hides_gpus: bool = False


@dataclass(frozen=True)
class Submission:
    id: str
    job: str
    entrypoint: str
    metadata: Mapping[str, str]
    package: Package | None  # None: the cluster sees the job's folder at the same path
    reserve: Reserve


def id_time(id: str) -> str:
    """When the run with this ID was submitted, as text that sorts; "": no such ID is ever given."""
    found = re.search(r"-(\d{6}-\d{6})-[0-9a-f]{4}$", id)
    return found[1] if found else ""


def check_tracking(spec: JobSpec) -> None:
    """Check that the study is not recorded in a file.

    Raises:
        InputError: it is, and the file would stay on the cluster.
    """
    if (spec.tracking.uri or "").startswith("sqlite:"):
        raise InputError(
            "tracking.uri is a file, which would be written on the cluster and stay there",
            where=str(spec.source),
            expected="auto, which uses the service's MLflow, or a server's address",
            remedy="leave tracking.uri out of the job file",
        )


def job_root(spec: JobSpec) -> Path:
    """The folder to send: job.yaml's, or ``workdir`` if that contains job.yaml's folder.

    Raises:
        InputError: neither contains the other.
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
        expected="one folder that contains both",
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
    """What to submit to the cluster.

    Args:
        run_options: more arguments for ``autotune run``.
        resume: the run directory of an earlier submission (:meth:`.Runs.directory`), to continue
            in; the command fails if it is not there.
    """
    assert spec.source is not None
    number = f"{spec.name}-{time.strftime('%y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    file = str(spec.source if package is None else spec.source.relative_to(package.root))
    words = ["autotune", "run", f"./{file}" if file.startswith("-") else file, *run_options]
    run_dir = f"{RUNS}/{shlex.quote(resume or number)}"
    missing = (
        f"autotune: nothing to resume: no {resume} in the directory of runs (AUTOTUNE_RUNS) of this"
        " node. Name the first submission of the run; keep that directory where all nodes see it"
    )
    there = "" if package else f"cd {shlex.quote(str(spec.source.parent))} && "
    if resume:
        there += f"{{ [ -d {run_dir} ] || {{ echo {shlex.quote(missing)}; exit 2; }}; }} && "
    hidden = " CUDA_VISIBLE_DEVICES=" if reserve.hides_gpus else ""
    told = shlex.join([f"{SUBMISSION}={number}", f"{NAME_VARIABLE}={spec.name}"])
    entrypoint = (
        f"{there}exec env -u OMP_NUM_THREADS{hidden} {told} {shlex.join(words)} --run-dir {run_dir}"
    )
    return Submission(
        number,
        spec.name,
        entrypoint,
        {NAME_KEY: spec.name, "autotune.user": user_name(), DIRECTORY_KEY: resume or number},
        package,
        reserve,
    )


def whole_node(cluster: Cluster, gpus: bool = True) -> Reserve:
    """All of the cluster's biggest node: runs sharing a node would disturb each other's times.
    ``gpus``: with its GPUs; else the run sees none.

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
    if not gpus:
        return Reserve(max(size.cpus for size in working), hides_gpus=True)
    return max(working, key=lambda size: (size.gpus, size.cpus))


def send(cluster: Cluster, submission: Submission) -> None:
    """Submit it to the cluster; returns as soon as the cluster has it.

    Raises:
        InputError: the cluster does not answer, rejects the token, or refuses the request.
    """
    client = cluster.client()
    with (
        tempfile.TemporaryDirectory(prefix="autotune-submit-") as folder,
        disk_errors_as_input_errors(Path(folder), "submit it again"),
    ):
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
            with cluster.request_errors_as_input_errors():
                _once_it_has_started(lambda: client.submit_job(**job))
        except RuntimeError as error:
            raise InputError(
                f"the cluster refuses the run: {last_line(error)}", where=cluster.address
            ) from error


def _once_it_has_started(submit: Callable[[], object]) -> None:
    """Submit, and retry while the cluster is still starting: it has accepted nothing until then."""
    deadline = time.monotonic() + START_WAIT_S
    while True:
        try:
            submit()
            return
        except RuntimeError as error:
            if STILL_STARTING not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)
