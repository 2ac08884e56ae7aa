"""A whole run of a job that prints all its secrets: none of them is ever in a file or in autotune's
output.

Short versions: tests/sessions/test_masked_sessions.py, tests/tracking/test_secrets.py.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SECRETS = {
    "WANDB_API_KEY": "canary-one-4f1b",
    "HF_TOKEN": "hf_canary2Zq81mmQ",
    "DB_PASSWORD": 'canary "three" \\ ü',
    "DEPLOY_SECRET": "-----BEGIN-----\ncanaryFOUR/first\ncanaryFOUR/second\n-----END-----",
    "DATABASE_URL": "postgresql://me:canaryFIVE55@host/db",
}
OF_THE_TUNER, ON_THE_COMMAND = "canarySIX666", "canarySEVEN7x7"
JOB = """
import logging, os, sys, warnings
import torch

NAMES = ("WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "DEPLOY_SECRET", "DATABASE_URL", "CLOUD_SECRET_ACCESS_KEY")
for name in NAMES:
    value = os.environ[name]
    print(name, value, repr(value), {name: value}, flush=True)
    print(value, file=sys.stderr, flush=True)
    os.write(1, value[: len(value) // 2].encode())
    os.write(1, value[len(value) // 2 :].encode() + b"\\n")
print(sys.argv, flush=True)
if "--fail" in sys.argv:
    raise RuntimeError("refused: " + ", ".join(os.environ[name] for name in NAMES))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

def guard(module, inputs):
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("no autocast with " + os.environ["HF_TOKEN"] + os.environ["DB_PASSWORD"])

net.register_forward_pre_hook(guard)
data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(100_000):
    for x, y in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    warnings.warn("epoch with " + os.environ["HF_TOKEN"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "aloud.py").write_text(JOB)
    write_job(tmp_path, "")
    return tmp_path


def write_job(folder: Path, more: str) -> None:
    job = {
        "name": "aloud",
        "command": f"python aloud.py --api-key {ON_THE_COMMAND}{more}",
        "env": SECRETS,
        "traces": "finalists",
        "search_space": {"amp_dtype": ["off", "bfloat16"], "optimizer_impl": "auto"},
        "budget": {"minutes": 1, "trials": 3},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def found_in(folder: Path) -> list[str]:
    """Files that contain a canary, with the text around it."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or path.name in ("job.yaml", "aloud.py"):
            continue
        try:
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
        except (OSError, EOFError):  # gone, or being written
            continue
        if (at := content.find(b"canary")) >= 0:
            found.append(f"{path.relative_to(folder)}: {content[max(0, at - 60) : at + 60]!r}")
    return found


def autotune(folder: Path, *arguments: str) -> tuple[int, str]:
    """(exit code, output) of a command; the folder is searched all the time."""
    said = folder.with_name(folder.name + " said")  # an unread pipe holds only 64 KiB
    with open(said, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune", *arguments],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CLOUD_SECRET_ACCESS_KEY": OF_THE_TUNER},
        )
    seen: list[str] = []
    while process.poll() is None:
        seen += found_in(folder)
        time.sleep(0.5)
    assert not seen + found_in(folder), seen[:10]
    return process.returncode, said.read_text()


def test_a_run_that_proves_something(folder: Path) -> None:
    code, said = autotune(folder, "run", "job.yaml", "--json")
    assert code == 0, said
    assert "canary" not in said
    run_dir = folder / "autotune-runs" / "aloud"
    for name in (
        "result.json",
        "report.html",
        "tuned.yaml",
        "journal.jsonl",
        "tracking/spool.jsonl",
    ):
        assert (run_dir / name).exists(), name
    assert "no autocast with ***" in (run_dir / "journal.jsonl").read_text(), (
        "the candidate did fail with a secret in its words"
    )
    assert "***" in (run_dir / "sessions" / "0001-first-run" / "stdout.log").read_text()
    tuned = yaml.safe_load((run_dir / "tuned.yaml").read_text())
    assert set(tuned["env_from_launch"]) >= {*SECRETS, "API_KEY"}
    for arguments in (
        "show aloud --all",
        "show aloud --json",
        "export autotune-runs/aloud",
        "check job.yaml",
        "check job.yaml --json",
    ):
        code, said = autotune(folder, *arguments.split())
        assert code == 0 and "canary" not in said, (arguments, said)


def test_a_job_that_fails(folder: Path) -> None:
    write_job(folder, " --fail")
    code, said = autotune(folder, "run", "job.yaml")
    assert code == 3
    assert "refused: ***" in said and "canary" not in said
