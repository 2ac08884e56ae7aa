"""The service as processes: a real PostgreSQL, MLflow's server, a Ray cluster; and a training job
tuned on it.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_machine import PORTS, ROOT, BareMachine, bare_machine, require_postgres

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(900)]

TRAIN = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x.sum(1, keepdim=True) > 0).float()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(a), b)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
"""
JOB = """\
name: tiny
command: python train.py
traces: none
search_space: {optimizer_impl: auto}
budget: {minutes: 0.5, trials: 2}
convergence: {steps: 60}
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[BareMachine]:
    require_postgres()
    with bare_machine() as found:
        done = found.up("--workers", "2", "--cpus", "2")
        assert done.returncode == 0, done.stdout + done.stderr
        yield found


def test_nobody_else_enters_rays_directory(machine: BareMachine) -> None:
    """Ray opens what lies in it to everyone, and runs' files are there."""
    inside = list(Path("/tmp").glob("autotune-ray-*/r/session_latest"))
    assert inside
    for path in inside:
        assert stat.S_IMODE(path.parents[1].stat().st_mode) == 0o700


def test_nothing_listens_beyond_loopback(machine: BareMachine) -> None:
    opened = machine.listeners()
    chosen = {int(file.read_text()) for file in (machine.state / "ports").iterdir()}
    assert {port for _, port in opened} >= chosen and len(chosen) >= len(PORTS)
    assert [
        (address, port)
        for address, port in opened
        if address not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
    ] == []


def test_a_study_of_a_submitted_run_is_in_mlflow(machine: BareMachine, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.yaml").write_text(JOB)
    done = machine.autotune("submit", "job.yaml", "--follow", cwd=tmp_path, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    id = done.stdout.partition(":")[0]

    result = json.loads((machine.state / "runs" / id / "result.json").read_text())
    experiment = machine.ask("experiments/get-by-name?experiment_name=tiny")["experiment"]
    runs = machine.ask(
        "runs/search", {"experiment_ids": [experiment["experiment_id"]], "max_results": 100}
    )["runs"]
    tags = [{tag["key"]: tag["value"] for tag in run["data"]["tags"]} for run in runs]
    (study,) = [run for run, tag in zip(runs, tags, strict=True) if tag["autotune.kind"] == "study"]
    trials = [tag for tag in tags if tag["autotune.kind"] == "trial"]
    assert study["info"]["status"] == "FINISHED"
    assert trials and all(tag["mlflow.parentRunId"] == study["info"]["run_id"] for tag in trials)
    kept = {
        item["path"]
        for item in machine.ask(f"artifacts/list?run_id={study['info']['run_id']}")["files"]
    }
    assert {"report.html", "tuned.yaml"} <= kept
    assert list((machine.state / "artifacts").rglob("report.html")), (
        "artifacts lie in the service's directory"
    )
    runs_listed = json.loads(machine.autotune("jobs", "--json", cwd=tmp_path).stdout)
    assert [(run["id"], run["status"]) for run in runs_listed] == [(id, "SUCCEEDED")]
    assert result["verdict"] in ("tuned", "keep-baseline")


def test_called_again_it_changes_nothing_and_starts_what_is_gone(machine: BareMachine) -> None:
    before, said = machine.pids(), machine.variables()
    assert set(before) == {"postgres", "mlflow", "ray-head", "ray-worker-1", "ray-worker-2"}
    again = machine.up()
    assert again.returncode == 0, again.stderr
    assert machine.pids() == before and machine.variables() == said

    script = str(ROOT / "docker" / "up.sh")
    other = machine.call(script, "--state", str(machine.state), MLFLOW_PORT="1")
    assert other.returncode == 2 and "MLFLOW_PORT is 1, but the service runs with" in other.stderr

    os.kill(before["mlflow"], signal.SIGKILL)
    while Path(f"/proc/{before['mlflow']}").exists():
        time.sleep(0.1)
    assert machine.up("--workers", "1").returncode == 0
    after = machine.pids()
    assert after["mlflow"] != before["mlflow"]
    assert {name: pid for name, pid in after.items() if name != "mlflow"} == {
        name: pid for name, pid in before.items() if name not in ("mlflow", "ray-worker-2")
    }


def test_secrets_are_closed_and_in_nobody_s_words(machine: BareMachine) -> None:
    folder = machine.state / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    secrets = {path.name: path.read_text().strip() for path in folder.iterdir()}
    assert set(secrets) == {"db_password", "ray_token", "pgpass"}
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in secrets} == {0o600}
    values = (secrets["db_password"].encode(), secrets["ray_token"].encode())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                shown = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            assert not any(value in shown for value in values), shown
    for log in (machine.state / "logs").iterdir():
        assert not any(value in log.read_bytes() for value in values), log


def test_a_foreign_page_cannot_speak_to_mlflow(machine: BareMachine) -> None:
    uri = machine.variables()["MLFLOW_TRACKING_URI"]
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": "evil.example"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 403
    assert machine.ask("experiments/search?max_results=1")["experiments"]


def test_nothing_is_left_after_down_and_everything_is_there_after_up(machine: BareMachine) -> None:
    name = f"over-{time.time_ns()}"
    machine.ask("experiments/create", {"name": name})
    assert machine.down().returncode == 0
    assert machine.processes() == {}
    assert machine.up("--workers", "1").returncode == 0
    worker = Path(f"/proc/{machine.pids()['ray-worker-1']}/cmdline").read_text().split("\0")
    assert worker[worker.index("--num-cpus") + 1] == "2", "as said at the first start"
    assert (
        machine.ask(f"experiments/get-by-name?experiment_name={name}")["experiment"]["name"] == name
    )


def test_a_directory_that_postgresql_s_user_cannot_enter(tmp_path: Path) -> None:
    """pytest's own directories are closed to other users."""
    require_postgres()
    if os.geteuid() != 0:
        pytest.skip("only root runs PostgreSQL as another user")
    done = subprocess.run(
        [ROOT / "docker" / "up.sh", "--state", tmp_path / "state"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "user 'postgres' cannot enter" in done.stderr and "--state" in done.stderr
