"""`autotune run` with the ray executor: one node, from job.yaml to the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ray_runs import left_behind, make_job, pids_in

pytestmark = pytest.mark.ray
PROGRAMS = Path(__file__).parents[1] / "programs"
TRAINS = """\
name: trains
command: python own_modules.py
tracking: {uri: null}
search_space: {amp_dtype: auto, optimizer_impl: auto, intra_op_threads: auto}
executor: {ray: {address: local}}
budget: {minutes: 1, trials: 3}
"""


def autotune(
    folder: Path, *words: str, timeout_s: float = 200, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["autotune", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **env},
        check=False,
    )


def test_a_run_on_a_cluster_of_its_own(tmp_path: Path) -> None:
    job = make_job(
        tmp_path / "job",
        "address: local",
        words="--leave-behind",
        space="{num_workers: [1, 2], optimizer_impl: [fused]}",
        trials=3,
    )
    (job.parent / "settings.txt").write_text("shipped")
    done = autotune(job.parent, "run", "job.yaml", "--quiet", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    run = job.parent / "autotune-runs" / "played"
    result = json.loads((run / "result.json").read_text())
    assert result["verdict"] == "tuned" and result["knobs"]["num_workers"] == 2
    ((node, _),) = result["environment"]["executor"]["slots"].items()
    assert {t["node"] for t in result["trials"]} == {node} and len(result["trials"]) == 3
    records = [json.loads(path.read_text()) for path in (run / "records").glob("confirm*.json")]
    assert records and {r["notes"]["node"] for r in records} == {node}
    sessions = sorted((run / "sessions").iterdir())
    assert all(s.name.endswith(f"@{node}") and (s / "session.json").exists() for s in sessions)
    assert left_behind(pids_in(result["environment"])) == []


@pytest.mark.slow
def test_a_directory_that_ray_finds_too_large_is_said_to_be_so(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", "address: local")
    (job.parent / "data.bin").write_bytes(os.urandom(30_000))
    at_most = {"RAY_max_grpc_message_size": "20000"}
    done = autotune(job.parent, "run", "job.yaml", HOME=str(tmp_path), **at_most)
    assert done.returncode == 2
    assert "does not accept the job's directory: Package size (0.03MiB) exceeds" in done.stderr
    assert str(job.parent) in done.stderr and "workdir: shared" in done.stderr


@pytest.mark.slow
def test_a_job_that_trains(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(PROGRAMS, folder)
    (folder / "job.yaml").write_text(TRAINS)
    done = autotune(folder, "run", "job.yaml", "--quiet", timeout_s=280, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    run = folder / "autotune-runs" / "trains"
    result = json.loads((run / "result.json").read_text())
    ((node, slot),) = result["environment"]["executor"]["slots"].items()
    assert result["verdict"] in ("tuned", "keep-baseline") and {
        t["node"] for t in result["trials"]
    } == {node}
    assert result["observation"]["machine"]["cores"] == slot["cores"]
    sides = result["explanation"]["sides"]
    assert (
        sides["baseline"]["operators"] and (run / sides["baseline"]["trace"]).stat().st_size > 1000
    ), "the trace came back from the slot"
    text = (run / "result.json").read_text()
    assert "autotune-slot-" not in text, "directories are called as they are called here"
    assert left_behind(pids_in(result["environment"])) == []
