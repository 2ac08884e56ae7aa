"""A program recorded by the real agent, patched by the real command, and run without autotune: the
settings are in force, and every loss equals that of `autotune launch`, to the last bit.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patch_sources import comments
from recorded_jobs import make_tuned, record

from autotune_spaces.domains import BFLOAT16_FLAGS
from autotune_spaces.machine import cpu

PROGRAM = '''"""Learn to tell noise from noise."""
import argparse
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    """Made anew at every access, the same every time."""

    def __len__(self):
        return 192

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(1, 16, 16, generator=generator), index % 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 32, 3)
        self.head = nn.Linear(32 * 14 * 14, 4)

    def forward(self, images):
        features = self.convolution(images).relu()
        seen["activations"] = str(features.dtype)
        seen["layout"] = features.is_contiguous(memory_format=torch.channels_last)
        return self.head(features.flatten(1))


seen = {}


def train_one_epoch(model, loader, optimizer, losses):
    model.train()
    for images, labels in loader:  # one step a batch
        outputs = model(images)
        loss = nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        seen["autocast"] = torch.is_autocast_enabled("cpu")  # after the forward: off again
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append(loss.item().hex())
        seen["batch"] = len(images)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(
        Noise(),
        batch_size=args.batch_size,  # of images
        shuffle=True,
    )
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(args.epochs):
        train_one_epoch(model, loader, optimizer, losses)
    seen.update(
        threads=torch.get_num_threads(), workers=loader.num_workers, prefetch=loader.prefetch_factor,
        lr=optimizer.param_groups[0]["lr"], fused=optimizer.param_groups[0]["fused"], precision=torch.get_float32_matmul_precision(),
        weights=model.convolution.weight.stride(), losses=losses,
    )
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
'''
KNOBS = {
    "num_workers": 2,
    "prefetch_factor": 4,
    "batch_size": 32,
    "amp_dtype": "bfloat16",
    "channels_last": True,
    "optimizer_impl": "fused",
    "intra_op_threads": 2,
    "matmul_precision": "medium",
}
WORDS = ("train.py", "--epochs", "3")
HERE = bool(cpu()[1].intersection(BFLOAT16_FLAGS))  # else launch refuses both
if not HERE:
    del KNOBS["amp_dtype"], KNOBS["matmul_precision"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job, and next to it the tuned.yaml of a run that chose KNOBS."""
    folder = tmp_path_factory.mktemp("patched") / "job"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    job = record(folder, "train.py", "--epochs", "30")
    make_tuned(
        folder,
        job,
        WORDS,
        KNOBS,
        folder.parent / "tuned.yaml",
        lr_scaling="linear",
        own_batch_size=16,
    )
    return folder


def run(*command: str, cwd: Path) -> dict:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XDG_CACHE_HOME": str(cwd / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_patched_job_trains_as_the_launched_one(folder: Path) -> None:
    home = folder.parent
    export = [
        sys.executable,
        "-m",
        "autotune",
        "export",
        "tuned.yaml",
        "-f",
        "diff",
        "-o",
        "tuned.diff",
    ]
    subprocess.run(export, cwd=home, check=True, capture_output=True, timeout=60)
    assert "Not in this patch" not in (home / "tuned.diff").read_text()
    copy = home / "copy"
    copy.mkdir()
    (copy / "train.py").write_text(PROGRAM)
    subprocess.run(["git", "apply", "../tuned.diff"], cwd=copy, check=True)
    assert comments((copy / "train.py").read_text()) == comments(PROGRAM)
    assert "autotune" not in (copy / "train.py").read_text()

    patched = run(sys.executable, *WORDS, cwd=copy)
    settings = {name: value for name, value in patched.items() if name != "losses"}
    assert settings == {
        "activations": "torch.bfloat16" if HERE else "torch.float32",
        "layout": True,
        "autocast": False,
        "batch": 32,
        "threads": 2,
        "workers": 2,
        "prefetch": 4,
        "lr": 2e-3,
        "fused": True,
        "precision": "medium" if HERE else "highest",
        "weights": [9, 1, 3, 1],
    }
    launched = run(sys.executable, "-m", "autotune", "launch", "tuned.yaml", "--quiet", cwd=home)
    assert patched["losses"] == launched["losses"] and len(patched["losses"]) == 18
    assert {
        name: launched[name]
        for name in ("activations", "layout", "threads", "weights", "batch", "precision")
    } == {
        name: patched[name]
        for name in ("activations", "layout", "threads", "weights", "batch", "precision")
    }
