"""Jobs of jobs/ as `Workload`s of loadtune 0.3, which builds the DataLoader and runs the steps itself.

    REGRET_JOB=loader_waits loadtune tune benchmarks/regret/loadtune_jobs.py

Dataset, model, optimizer and step are the job's own. It can take jobs of one DataLoader whose loop
only trains.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "jobs"))

from loadtune import Workload  # type: ignore[import-not-found]
from torch import nn, optim


def loader_waits() -> Workload:
    from loader_waits import RemoteDigits

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )  # fmt: skip

    return workload(lambda: RemoteDigits(4000), model, 16)


def loader_computes() -> Workload:
    from loader_computes import AugmentedDigits

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 25, 10),
        )  # fmt: skip

    return workload(AugmentedDigits, model, 32)


def conv_no_eval() -> Workload:
    from conv_no_eval import Digits, block

    def model() -> nn.Module:
        return nn.Sequential(
            block(1, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), block(64, 128),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip

    return workload(Digits, model, 64)


def workload(dataset, model, batch_size) -> Workload:  # type: ignore[no-untyped-def]
    return Workload(
        name=os.environ["REGRET_JOB"],
        make_dataset=dataset,
        make_model=model,
        train_step=step,
        make_optimizer=lambda m: optim.AdamW(m.parameters(), lr=1e-3),
        default_batch_size=batch_size,
    )


def step(model, optimizer, batch, device):  # type: ignore[no-untyped-def]
    images, labels = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    loss.backward()
    optimizer.step()
    loss.item()
    return loss


def get_workload() -> Workload:
    jobs = (loader_waits, loader_computes, conv_no_eval)
    return {job.__name__: job for job in jobs}[os.environ["REGRET_JOB"]]()
