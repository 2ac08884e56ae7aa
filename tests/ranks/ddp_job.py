"""A DistributedDataParallel job of two gloo ranks under torchrun, with hooks for planted faults and
its own ground truth.

Every rank prints what it has built and what it trains on:

    built <rank> <bucket, bytes> <gradient_as_bucket_view> <static_graph>
    step <rank> <n> <samples of this rank> <loss, averaged over the ranks>
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TRAIN = """
import contextlib, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()

class Data(Dataset):
    def __init__(self):
        self.x = torch.randn({samples}, 32, generator=torch.Generator().manual_seed(1))
        self.y = self.x.sum(1, keepdim=True).sin()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        {item}
        return self.x[i], self.y[i]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, {width}), nn.ReLU(), nn.Linear({width}, {width}), nn.ReLU(), nn.Linear({width}, 1))
    def forward(self, x):
        {forward}
        return self.net(x)

def main():
    n = 0
    data = Data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size={batch}, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(Model(), {ddp})
    sys.stdout.write(f"built {{rank}} {{model.bucket_bytes_cap}} {{model.gradient_as_bucket_view}} {{model.static_graph}}\\n")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen, loss_of_step = 0, 0.0
    for epoch in range({epochs}):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            {before}
            last = (i + 1) % {accumulate} == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = (model(x).float() - y).square().mean() / {accumulate}
                loss.backward()
            seen, loss_of_step = seen + len(x), loss_of_step + loss.detach()
            if not last:
                continue
            mean = loss_of_step.clone()
            dist.all_reduce(mean)
            # one write a line: both ranks share the pipe, and what is said of a step must be there when the agent pauses in it
            sys.stdout.write(f"step {{rank}} {{n}} {{seen}} {{mean.item() / 2!r}}\\n")
            sys.stdout.flush()
            seen, loss_of_step, n = 0, 0.0, n + 1
            optimizer.step()
            optimizer.zero_grad()
            {after}

if __name__ == "__main__":
    main()
"""
# hooks for a test's own lines
HOOKS = dict.fromkeys(("item", "forward", "before", "after"), "pass")
OWN = {
    "samples": 256,
    "width": 16,
    "batch": 8,
    "epochs": 10_000,
    "accumulate": 1,
    "ddp": "",
    **HOOKS,
}


def source(**changes: object) -> str:
    assert set(changes) <= set(OWN), changes
    return TRAIN.format(**{**OWN, **changes})


def torchrun(*options: str, python: str = sys.executable) -> list[str]:
    return [
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *options,
        "train.py",
    ]


@dataclass(frozen=True)
class Step:
    """What one rank printed about one step."""

    rank: int
    number: int
    samples: int
    mean_loss: float


def steps_of(text: str, rank: int = 0) -> list[Step]:
    """The steps that ``rank`` printed, in order."""
    found = []
    for line in text.splitlines():
        if line.startswith(f"step {rank} "):
            _, who, number, samples, loss = line.split()
            found.append(Step(int(who), int(number), int(samples), float(loss)))
    return found


def total_samples(text: str, ranks: Iterable[int] = (0, 1)) -> list[int]:
    """Samples of each step, over all ranks."""
    return [
        sum(step.samples for step in steps)
        for steps in zip(*(steps_of(text, rank) for rank in ranks), strict=False)
    ]


def built(text: str) -> dict[int, str]:
    """Rank -> the settings of its DistributedDataParallel."""
    lines = (line.split(maxsplit=2) for line in text.splitlines() if line.startswith("built "))
    return {int(rank): how for _, rank, how in lines}


def log(root: Path) -> str:
    return (root / "stdout.log").read_text()
