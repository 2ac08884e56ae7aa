"""Loops that never reach their loader's end because they count batches (Lightning, loops by steps):
the whole cost of an epoch's end is counted, and nothing counts twice.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiers import slow

from autotune.executors.base import FixedRun
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec, SideEffects
from autotune_spaces.base import SearchSpace
from autotune_spaces.knobs import create

PROGRAM = """
import json, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset

def train(net, optimizer, batches):
    for _ in range(STEPS):
        x, = next(batches)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

STEPS, EPOCHS = 12, 9
torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
more = 3 if sys.argv[1] == "limited" else 1  # epochs end long before the loader does
loader = DataLoader(TensorDataset(torch.randn(4 * STEPS * more, 64)), batch_size=4, shuffle=True)
others = DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=4)
log = open("epochs.log", "a", buffering=1)
batches = None
for epoch in range(EPOCHS):
    began, outside_s = time.perf_counter(), 0.0
    if sys.argv[1] == "dropped":
        batches = None
    if sys.argv[1] in ("dropped", "dropped late"):
        evaluation_began = time.perf_counter()
        net.eval()
        with torch.no_grad():
            for x, in others:
                net(x)
                time.sleep(0.005)
        net.train()
        outside_s = time.perf_counter() - evaluation_began
    if sys.argv[1] == "dropped late":
        batches = None
    batches = iter(loader)
    train(net, optimizer, batches)
    log.write(json.dumps([time.perf_counter() - began, outside_s]) + "\\n")
"""
EPOCH, EPOCHS, WORKERS = 12, 9, 8


@pytest.mark.parametrize(
    "loop", [slow("replaced"), slow("dropped"), slow("dropped late"), "limited"]
)
def test_all_that_workers_cost_between_epochs_is_counted_once(loop: str, tmp_path: Path) -> None:
    """Starting and ending workers takes most of these epochs; a loop that counts batches is charged
    for it like any other.
    """
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    spec = JobSpec(
        "job",
        ("python", "train.py", loop),
        folder,
        {"OMP_NUM_THREADS": "1"},
        SearchSpace("test", (create("num_workers", {}),)),
        side_effects=SideEffects(keep=("epochs.log",)),
    )
    tuner = LocalExecutor(spec, tmp_path / "run")
    try:
        record = tuner.run_fixed(
            FixedRun({"num_workers": WORKERS}, seed=0, steps=EPOCH * (EPOCHS - 1) + 1)
        )
    finally:
        tuner.close()
    window = record.window
    logged = [json.loads(line) for line in (folder / "epochs.log").read_text().splitlines()]
    passed_s = sum(total - outside for total, outside in logged[1 : EPOCHS - 1])
    counted_s = sum(window.times_s[EPOCH : EPOCH * (EPOCHS - 1)]) + sum(window.turnovers_s[:-1])
    assert len(window.turnovers_s) == EPOCHS - 1
    assert sum(window.turnovers_s) > 0.5 * passed_s, "else this would prove nothing"
    assert window.epoch_iterations == EPOCH, "it is charged as often as it comes"
    assert counted_s == pytest.approx(passed_s, rel=0.1)


BY_HAND = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
weights = torch.randn(64, 64, requires_grad=True)
loader = DataLoader(TensorDataset(torch.randn(32, 64)), batch_size=4, shuffle=True)
while True:
    batches = iter(loader)
    for _ in range(len(loader)):
        x, = next(batches)
        (x @ weights).square().mean().backward()
        with torch.no_grad():
            weights -= 0.01 * weights.grad
            weights.grad = None
    batches = None
"""


def test_what_was_in_force_is_known_between_epochs(tmp_path: Path) -> None:
    """An iteration without torch.optim ends when the next one begins: between two epochs, when such
    a loop has no iterator.
    """
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(BY_HAND)
    space = SearchSpace("test", (create("num_workers", {}),))
    spec = JobSpec("job", ("python", "train.py"), folder, {"OMP_NUM_THREADS": "1"}, space)
    tuner = LocalExecutor(spec, tmp_path / "run")
    try:
        record = tuner.run_fixed(FixedRun({"num_workers": 1}, seed=0, steps=2 * 8))
    finally:
        tuner.close()
    assert record.window.workers == 1
    assert record.notes["in_force"]["loader"]["num_workers"] == 1
