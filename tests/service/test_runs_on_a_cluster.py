"""submit, jobs, logs and stop against a real Ray head and worker with token authentication. The
jobs do not train, so that runs answer quickly.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import RayCluster, ray_cluster

from autotune.service.cluster import find_cluster
from autotune.service.runs import Runs

pytestmark = pytest.mark.ray

TESTS = Path(__file__).resolve().parents[1]
PLAYED = """\
name: played
command: python played_job.py
env: {{PYTHONPATH: "{path}"}}
search_space: {{num_workers: [1, 2], optimizer_impl: [fused]}}
executor: ray
traces: none
tracking: {{uri: none}}
budget: {{minutes: 5, trials: 3}}
convergence: {{steps: 60}}
"""
JOB = (
    "name: {name}\ncommand: {command}\ntracking: {{uri: none}}\nenv: {{API_KEY: hunter2hunter2}}\n"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(workers=1) as found:
        yield found


def job(folder: Path, name: str, command: str) -> Path:
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB.format(name=name, command=command))
    (folder / "hello.py").write_text(
        "import os, torch\nprint('threads', os.environ.get('OMP_NUM_THREADS'), 'cores',"
        " os.cpu_count())\n"
    )
    (folder / "forever.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    return folder


def submitted(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.partition(":")[0]


def status(cluster: RayCluster, cwd: Path, id: str) -> str:
    runs = {run["id"]: run for run in json.loads(cluster.asked("jobs", "--json", cwd=cwd).stdout)}
    return runs[id]["status"]


def wait_until(cluster: RayCluster, id: str, wanted: str, timeout_s: float = 60) -> None:
    """Asks in this process: a new process of the command would take seconds."""
    runs = Runs(find_cluster(cluster.address, cluster.token_file))
    deadline = time.monotonic() + timeout_s
    while (now := runs.find(id).status) != wanted:
        assert time.monotonic() < deadline, f"{id} is {now}, not {wanted}"
        time.sleep(0.2)


@pytest.mark.slow
def test_a_run_goes_there_and_its_outcome_comes_back(cluster: RayCluster, tmp_path: Path) -> None:
    """The job never trains: `autotune run` ends with exit code 4, there as well as here."""
    folder = job(tmp_path / "job", "no-training", "python hello.py")
    done = cluster.autotune("submit", "job.yaml", "--follow", cwd=folder)
    id = done.stdout.partition(":")[0]
    assert done.returncode == 4, done.stdout + done.stderr
    assert "2 files" not in done.stdout and "3 files" in done.stdout
    assert f"{id}: failed" in done.stderr
    log = cluster.autotune("logs", id, cwd=folder)
    assert log.returncode == 0 and "autotune run job.yaml" in log.stdout
    assert "hunter2" not in log.stdout
    assert log.stdout.endswith(f"\nautotune: {id} ended with exit code 4\n")
    printed = "".join(
        path.read_text()
        for path in (cluster.folder / "runs" / id / "sessions").glob("*/stdout.log")
    )
    assert "threads None" in printed, "Ray's OMP_NUM_THREADS has reached the job"


@pytest.mark.slow
def test_runs_wait_for_their_place_and_can_be_stopped(cluster: RayCluster, tmp_path: Path) -> None:
    folder = job(tmp_path / "job", "long", "python forever.py")
    first = submitted(cluster.asked("submit", "job.yaml", cwd=folder))
    wait_until(cluster, first, "RUNNING")
    second = submitted(cluster.asked("submit", "job.yaml", cwd=folder))
    deadline = time.monotonic() + 60
    while not cluster.processes("forever.py"):
        assert time.monotonic() < deadline, cluster.asked("logs", first, cwd=folder).stdout
        time.sleep(0.3)
    assert status(cluster, folder, second) == "PENDING", "two runs at once on one worker"
    assert "waiting for a free node" in cluster.asked("logs", second, cwd=folder).stderr

    assert "it will stop when it gets one" in cluster.asked("stop", second, cwd=folder).stdout
    asked_s = time.monotonic()
    assert cluster.asked("stop", first, cwd=folder).stdout == f"{first}: stopped\n"
    assert time.monotonic() - asked_s < 30, "Ray had to kill it"
    log = cluster.asked("logs", first, cwd=folder).stdout
    assert "stopped on request" in log and log.endswith(f"{first} ended with exit code 130\n")
    assert cluster.processes("forever.py") == []
    wait_until(cluster, second, "STOPPED")
    assert "has already ended" in cluster.asked("stop", first, cwd=folder).stdout
    assert (cluster.folder / "runs" / first / "journal.jsonl").exists()

    third = submitted(cluster.asked("submit", "job.yaml", "--resume", first, cwd=folder))
    wait_until(cluster, third, "RUNNING")
    cluster.asked("stop", third, cwd=folder)
    assert not (cluster.folder / "runs" / third).exists(), (
        "the resumed run has started a directory of its own"
    )


@pytest.mark.slow
def test_a_run_with_executor_ray_steers_and_the_worker_measures(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """The run takes no node for itself, so the only worker is free for its slot; the directory is
    shipped once, at submission.
    """
    path = os.pathsep.join(
        map(
            str,
            (
                TESTS.parent,
                TESTS.parent / "trials",
                TESTS.parent / "search_spaces",
                TESTS,
                TESTS / "sessions",
            ),
        )
    )
    (tmp_path / "job.yaml").write_text(PLAYED.format(path=path))
    shutil.copy(TESTS / "executors" / "played_job.py", tmp_path)
    done = cluster.autotune("submit", "job.yaml", "--follow", cwd=tmp_path, timeout_s=240)
    id = done.stdout.partition(":")[0]
    assert done.returncode == 0, done.stdout + done.stderr
    run = cluster.folder / "runs" / id
    result = json.loads((run / "result.json").read_text())
    assert result["verdict"] == "tuned" and result["knobs"]["num_workers"] == 2
    executor = result["environment"]["executor"]
    assert executor["address"] == "auto" and len(executor["slots"]) == 1
    assert {trial["node"] for trial in result["trials"]} == set(executor["slots"])
    sessions = [path.name for path in (run / "sessions").iterdir()]
    assert sessions and all(name.endswith(f"@{next(iter(executor['slots']))}") for name in sessions)

    # What this run has learnt is available to the next one, whoever submits it.
    assert (cluster.folder / "runs" / "history.sqlite").exists()
    again = cluster.autotune("submit", "job.yaml", "--follow", cwd=tmp_path, timeout_s=240)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "proving the recorded answer" in again.stdout
    second = json.loads(
        (cluster.folder / "runs" / again.stdout.partition(":")[0] / "result.json").read_text()
    )
    assert (
        second["recalled"]["outcome"] == "proven anew"
        and second["knobs"] == result["knobs"]
        and not second["trials"]
    )


@pytest.mark.slow
def test_what_the_cluster_shows_of_a_run_holds_no_secret(
    cluster: RayCluster, tmp_path: Path
) -> None:
    import requests

    folder = job(tmp_path / "job", "secret", "python hello.py")
    id = submitted(cluster.asked("submit", "job.yaml", "--cpus", "0", cwd=folder))
    token = cluster.token_file.read_text()
    answer = requests.get(
        f"{cluster.address}/api/jobs/{id}", headers={"Authorization": f"Bearer {token}"}, timeout=20
    )
    shown = answer.json()
    assert shown["metadata"]["autotune.job"] == "secret"
    assert "hunter2" not in answer.text and token not in answer.text
    assert requests.get(f"{cluster.address}/api/jobs/{id}", timeout=20).status_code == 401


@pytest.mark.slow
def test_the_wrong_token_and_the_wrong_id(cluster: RayCluster, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 32)
    refused = cluster.asked("jobs", "--token-file", str(wrong), cwd=tmp_path)
    assert refused.returncode == 2 and "rejects the token from --token-file" in refused.stderr
    for command in ("logs", "stop"):
        unknown = cluster.asked(command, "nobody-1", cwd=tmp_path)
        assert unknown.returncode == 2 and "has no run 'nobody-1'" in unknown.stderr


# A measurement takes 12 steps, that is, 48 seconds.
SLOW = """\
import sys, time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1000):
    (weight - 1).square().sum().backward()
    optimizer.step()
    open(sys.argv[1], "a").write("step\\n")
    time.sleep(4)
"""


@pytest.mark.faults
def test_a_run_whose_measurements_are_elsewhere_and_long_is_stopped_within_half_a_minute(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Ray terminates the run's own processes, but not those of its trials on other nodes."""
    steps = tmp_path / "steps"
    folder = job(tmp_path / "job", "elsewhere", f"python slow.py {steps}")
    (folder / "slow.py").write_text(SLOW)
    with (folder / "job.yaml").open("a") as file:
        file.write("executor: ray\ntraces: none\nsearch_space: {optimizer_impl: auto}\n")
    id = submitted(cluster.autotune("submit", "job.yaml", "--cpus", "0", cwd=folder))
    deadline = time.monotonic() + 120
    while not (steps.exists() and len(steps.read_text().splitlines()) >= 6):
        assert time.monotonic() < deadline, cluster.autotune("logs", id, cwd=folder).stdout
        time.sleep(0.3)
    asked_s = time.monotonic()
    assert cluster.autotune("stop", id, cwd=folder).stdout == f"{id}: stopped\n"
    assert time.monotonic() - asked_s < 30
    assert "stopped on request" in cluster.autotune("logs", id, cwd=folder).stdout, (
        "it ended by itself, and was not killed"
    )
    while cluster.processes("slow.py"):
        assert time.monotonic() - asked_s < 45, "its trial goes on"
        time.sleep(0.3)
