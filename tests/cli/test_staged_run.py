"""A whole run with knobs of every kind on a job that reads files: found, proven, written down,
launched, and nothing stays in memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import Job, make_job, wait_until

pytestmark = pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to"
)

# A slow disk is played by a wait in every read that does not come from memory; the garbage by
# objects that live as long as the job.
READS = """
import gc, json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder):
        self.files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        self.slow_s = 0.0 if folder.startswith("/dev/shm") else 0.0006
    def __len__(self): return len(self.files)
    def __getitem__(self, i):
        time.sleep(self.slow_s)
        with open(self.files[i], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)[:256].float() / 255

torch.manual_seed(0)
folder = sys.argv[sys.argv.index("--data") + 1]
held = [{"i": i} for i in range(300_000)]
loader = DataLoader(Files(folder), batch_size=16, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.ReLU(), torch.nn.Linear(128, 256))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
if "--once" in sys.argv:
    epochs = 1
else:
    epochs = 10_000
for epoch in range(epochs):
    for x in loader:
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made = [{"x": [i]} for i in range(3_000)]
print(json.dumps({"folder": folder, "frozen": gc.get_freeze_count(), "cores": sorted(os.sched_getaffinity(0))}))
"""
TEXT = """\
name: job
command: {command}
traces: none
tracking: {{uri: null}}
search_space: {{gc: auto, cpu_affinity: auto, malloc: auto, data_staging: {{path: files}}}}
budget: {{minutes: 8, trials: 8}}
convergence: {{steps: 120}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = make_job(tmp_path / "job", "python reads.py --data files", TEXT)
    (made.folder / "reads.py").write_text(READS)
    (made.folder / "files").mkdir()
    for i in range(256):
        (made.folder / "files" / f"{i:03d}.bin").write_bytes(os.urandom(4096))
    return made


def in_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("autotune-")}


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_found_proven_and_launched(job: Job) -> None:
    before = in_memory()
    done = job.run(timeout_s=900)
    assert done.returncode == 0, done.stderr
    result = job.result
    assert result["verdict"] == "tuned"
    assert result["knobs"]["data_staging"] == "shm"
    copying = next(gain for gain in result["gains"] if gain["knob"] == "data_staging")
    assert copying["start_up_s"] > 0 and copying["break_even_steps"] >= 1
    assert in_memory() == before, "the copy goes with the run"
    tuned = yaml.safe_load((job.run_dir / "tuned.yaml").read_text())
    assert tuned["knobs"]["data_staging"]["options"] == {"path": "files"}
    launched = subprocess.run(
        [sys.executable, "-m", "autotune", "launch", str(job.run_dir), "--", "--once"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert launched.returncode == 0, launched.stderr
    seen = json.loads(launched.stdout.splitlines()[-1])
    assert seen["folder"].startswith("/dev/shm/autotune-")
    assert (seen["frozen"] > 300_000) == (result["knobs"].get("gc") == "freeze")
    assert not os.path.exists(seen["folder"]) and in_memory() == before


@pytest.mark.slow
def test_an_interrupted_run_takes_its_copy_along(job: Job) -> None:
    text = (job.folder / "job.yaml").read_text()
    (job.folder / "job.yaml").write_text(
        text.replace("gc: auto, cpu_affinity: auto, malloc: auto, ", "")
    )
    before = in_memory()
    process = job.start()
    wait_until(lambda: in_memory() - before, 200, "the copy")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert in_memory() == before
