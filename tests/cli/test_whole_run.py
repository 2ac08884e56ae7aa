"""A whole `autotune run`, stopped by Ctrl-C and by kill -9, keeps the README's promises.

Real sessions of a real training, with shorter windows than usual. Reading data sleeps, so workers
help even on a busy machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Job, make_job, started, wait_until

PROGRAM = """\
import argparse, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Slow(Dataset):
    def __len__(self):
        return 800
    def __getitem__(self, index):
        time.sleep(0.001)
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return x, x.sum() * 0.5, get_worker_info() is not None
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=500)
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Slow(), batch_size=8, shuffle=True)
Path("kept").mkdir(exist_ok=True)
for epoch in range(parser.parse_args().epochs):
    for step, (x, y, by_workers) in enumerate(loader):
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            torch.save(model.state_dict(), "kept/best.pt")
            torch.save(model.state_dict(), f"kept/epoch-{epoch}.pt")
print("read by workers:", bool(by_workers.all()))
"""
TEXT = """\
name: job
command: {command}
traces: none
search_space: {{num_workers: [0, 4]}}
budget: {{minutes: 8, trials: 1}}
convergence: {{steps: 60}}
"""
STORE = "../history.sqlite"
SHORTER = Path(__file__).parents[1] / "shorter.py"


@dataclass(frozen=True)
class Whole:
    job: Job
    ends: tuple[subprocess.CompletedProcess[str], ...]  # by Ctrl-C, by kill -9, by itself
    journals: tuple[list[dict[str, Any]], ...]  # after each


def start(job: Job, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(SHORTER), "run", "job.yaml", "--quiet", "--store", STORE, *options],
        cwd=job.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    return process


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=500)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def autotune(job: Job, *words: str) -> str:
    command = [sys.executable, "-m", "autotune", *words]
    done = subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kinds(job: Job) -> list[str]:
    return [entry["kind"] for entry in job.journal()]


def wait_for(kind: str, job: Job, process: subprocess.Popen[str]) -> None:
    wait_until(lambda: kind in kinds(job) or process.poll() is not None, 300, f"a {kind}")
    assert process.poll() is None, ended(process)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    job = make_job(tmp_path_factory.mktemp("whole") / "job", "python whole.py", TEXT)
    (job.folder / "whole.py").write_text(PROGRAM)
    (job.folder / "kept").mkdir()
    (job.folder / "kept" / "best.pt").write_bytes(b"of an earlier training")
    ends, journals = [], []
    for stop, kind in ((signal.SIGINT, "observation"), (signal.SIGKILL, "trial"), (None, "")):
        process = start(job)
        if stop is not None:
            wait_for(kind, job, process)
            os.kill(process.pid, stop)
        ends.append(ended(process))
        wait_until(lambda: not job.left_over(), 30, "the job's processes to end with the tuner")
        journals.append(job.journal())
    return Whole(job, tuple(ends), tuple(journals))


def test_the_same_command_resumes_after_ctrl_c_and_kill_9(whole: Whole) -> None:
    stopped, killed, finished = whole.ends
    assert stopped.returncode == 130, stopped.stderr
    assert "saved" in stopped.stderr and "same command" in stopped.stderr
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert finished.returncode == 0, finished.stderr
    first, second, last = whole.journals
    assert 0 < len(first) < len(second) < len(last)
    assert second[: len(first)] == first and last[: len(second)] == second, "nothing is lost"
    assert kinds(whole.job).count("observation") == 1


def test_the_gain_is_found_proven_and_written_down(whole: Whole) -> None:
    result = whole.job.result
    assert result["verdict"] == "tuned" and result["knobs"] == {"num_workers": 4}
    assert result["speedup"]["low"] > 1.0
    assert result["loss"]["verdict"] == "unchanged"
    tuned = yaml.safe_load((whole.job.run_dir / "tuned.yaml").read_text())
    assert tuned["knobs"]["num_workers"]["value"] == 4
    page = (whole.job.run_dir / "report.html").read_text()
    assert "num_workers" in page and "<script src" not in page


def test_files_of_the_job_are_as_they_were(whole: Whole) -> None:
    kept = whole.job.folder / "kept"
    assert [path.name for path in kept.iterdir()] == ["best.pt"]
    assert (kept / "best.pt").read_bytes() == b"of an earlier training"


def test_the_study_is_in_mlflow_with_a_child_per_configuration(whole: Whole) -> None:
    with sqlite3.connect(whole.job.run_dir.parent / "mlflow.db") as store:
        states = [state for (state,) in store.execute("select status from runs")]
        parents = list(store.execute("select value from tags where key = 'mlflow.parentRunId'"))
    assert set(states) == {"FINISHED"}
    assert len(set(parents)) == 1 and len(parents) == len(states) - 1 >= 2


def test_a_finished_run_is_shown_again_at_once(whole: Whole) -> None:
    again = ended(start(whole.job))
    assert again.returncode == 0, again.stderr
    assert whole.job.journal() == whole.journals[-1], "nothing is measured again"
    assert "faster" in autotune(whole.job, "show", str(whole.job.run_dir))


def test_the_result_is_launched_and_exported(whole: Whole) -> None:
    launched = autotune(whole.job, "launch", str(whole.job.run_dir), "--", "--epochs", "1")
    assert launched.splitlines()[-1] == "read by workers: True"
    autotune(whole.job, "export", str(whole.job.run_dir), "--format", "shell", "-o", "tuned.sh")
    assert "AUTOTUNE" in (whole.job.folder / "tuned.sh").read_text()


def test_fresh_begins_a_new_run_that_proves_the_recorded_answer(
    whole: Whole, tmp_path: Path
) -> None:
    shutil.copytree(whole.job.folder, tmp_path / "job")
    shutil.copy(whole.job.folder / STORE, tmp_path)
    job = Job(tmp_path / "job")
    again = start(job, "--fresh")
    moved = job.folder / "autotune-runs" / "job.1"
    wait_until(
        lambda: again.poll() is not None or (moved.exists() and "recall" in kinds(job)),
        120,
        "the history to be asked",
    )
    again.send_signal(signal.SIGTERM)
    assert ended(again).returncode == 130
    assert (moved / "result.json").exists() and not (job.run_dir / "result.json").exists()
    (recall,) = [entry["data"] for entry in job.journal() if entry["kind"] == "recall"]
    assert recall["answer"] == whole.job.result["knobs"]
