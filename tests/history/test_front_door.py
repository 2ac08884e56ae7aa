"""``autotune run`` on a real job, twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Fetching a batch waits for 6 ms, and the step takes about as long: workers help on any machine.
TRAIN = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 40_000

    def __getitem__(self, i):
        if i % 8 == 0:
            time.sleep(0.006)
        return torch.full((64,), (i % 17) / 17), torch.tensor([(i % 17) / 17])

torch.manual_seed(int(__import__("os").environ.get("SEED", "0")))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for x, y in DataLoader(Slow(), batch_size=8):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
JOB = """
name: slow
command: python train.py
search_space: {num_workers: [0, 2]}
tracking: {uri: null}
traces: none
budget: {minutes: 3}
"""


def _run(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    command = ["autotune", "run", "job.yaml", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = folder / (
        options[options.index("--run-dir") + 1] if "--run-dir" in options else "autotune-runs/slow"
    )
    return json.loads((run_dir / "result.json").read_text()), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_second_run_proves_the_answer_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.yaml").write_text(JOB)
    first, _ = _run(tmp_path)
    assert first["knobs"] == {"num_workers": 2}, first["reason"]
    _, said = _run(tmp_path)
    assert "this job has already been tuned" in said and "num_workers=2" in said
    second, said = _run(tmp_path, "--run-dir", "again")
    assert "proving the recorded answer" in said
    assert second["knobs"] == first["knobs"] and second["trials"] == [], second["rejected"]
    assert second["confirmation"]["adopted"] and second["loss"]["verdict"] == "unchanged"
    assert second["recalled"]["outcome"] == "proven anew"
    call = "import autotune; print(autotune.tune('job.yaml', run_dir='called').recalled.outcome)"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True, timeout=580
    )
    assert (done.stdout, done.stderr) == ("proven anew\n", "")
    listed = subprocess.run(
        ["autotune", "history", "list"], capture_output=True, text=True, timeout=60
    ).stdout
    assert len(listed.splitlines()) == 3 and listed.count("num_workers=2") == 3
