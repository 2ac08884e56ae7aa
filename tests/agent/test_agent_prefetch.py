"""The next batch copied ahead. The GPU is simulated: see pretend_cuda.py for what it models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_agent_live import in_order
from tiny_tuner import Tuner, block, run_bare

from autotune_trials.protocol.messages import Record

STEPS = 40

JOB = (
    """
import os, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)
class Data(Dataset):
    def __len__(self): return 160
    def __getitem__(self, i):
        noise = torch.Generator().manual_seed(i)
        x, y = torch.randn(8, generator=noise), torch.randn(1, generator=noise)
        return {"x": x, "y": y, "name": f"item {i}"}
loader = DataLoader(Data(), batch_size=16, num_workers=WORKERS)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
device, cuda = "cpu", None
if "AUTOTUNE_SESSION" in os.environ:
    import pretend_cuda
    device, cuda = "cuda:1", pretend_cuda.install()
def moved(tensor): return tensor.to(device) if cuda else tensor.clone()
while True:
    for batch in loader:
        MOVE
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        ahead = cuda is not None and all(cuda.copies[-2:])
        assert cuda.lent if ahead else True
        print(loss.item().hex(), "ahead" if ahead else "own", flush=True)
"""
    + f"""
        count = globals().get("count", 0) + 1
        if cuda is None and count == {STEPS}: raise SystemExit
"""
)

ONE_EPOCH = ("return 160", "return 16_000")  # the job itself copies the first batch of each epoch
PLAIN = 'x, y = batch["x"].to(device), batch["y"].cuda(1) if cuda else batch["y"]'
MOVES = {
    "as they are": PLAIN,
    "not waited for": 'x, y = (batch[k].to(device=device, non_blocking=True) for k in "xy")',
    "changed before": f'batch["x"].mul_(2); {PLAIN}',
    "changed after": 'x = moved(batch["x"]); batch["x"].zero_(); y = batch["y"].to(device)',
    "twice": 'x, y = moved(batch["x"]).zero_() + moved(batch["x"]), batch["y"].to(device)',
    "one converted": 'x, y = batch["x"].to(device), batch["y"].to(device, torch.float64).float()',
    "one stays": 'x, y = batch["x"].to(device), batch["y"]',
}


def job(move: str, workers: int = 0) -> str:
    return JOB.replace("MOVE", move).replace("WORKERS", str(workers))


def bare_losses(tuner: Tuner, source: str) -> list[str]:
    """Losses without the agent, in hexadecimal."""
    return [line.split()[0] for line in run_bare(tuner.directory, source).splitlines()]


def start(tuner: Tuner, source: str, mode: str, **config: object) -> None:
    shutil.copy(Path(__file__).parent / "pretend_cuda.py", tuner.directory)
    tuner.start(source, mode, **config)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("move", "workers"), [*((name, 0) for name in MOVES), ("as they are", 2)])
def test_the_job_trains_on_the_same_batches(tuner: Tuner, move: str, workers: int) -> None:
    source = job(MOVES[move], workers)
    expected = [float.fromhex(loss) for loss in bare_losses(tuner, source)]
    start(tuner, source, "fixed", knobs={"cuda_prefetch": True}, steps=STEPS)
    tuner.receive()
    record = tuner.receive()
    assert isinstance(record, Record) and list(record.losses) == expected
    assert dict(record.no_effect) == {}


def test_it_is_switched_there_and_back(tuner: Tuner) -> None:
    source = job(PLAIN).replace(*ONE_EPOCH)
    expected = bare_losses(tuner, source)
    start(tuner, source, "live")
    tuner.receive()
    reports = tuner.measure(block("b"), block("c", cuda_prefetch=True), block("b2"))
    assert [(r.error, dict(r.no_effect)) for r in reports] == [("", {})] * 3
    assert tuner.process is not None
    tuner.process.kill()
    lines = [line.split() for line in tuner.process.communicate()[0].split("\n")[:-1]]
    assert [loss for loss, _ in lines[:STEPS]] == expected[: len(lines)]
    assert in_order([whose for _, whose in lines]) == ["own", "ahead", "own"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("pretend_cuda\n", "pretend_cuda; pretend_cuda.PINNED = False\n", 1), "pinned"),
        (('batch["x"].to(device)', '(batch["x"] + 0).to(device)'), "never moves a batch tensor"),
    ],
)
def test_why_it_does_nothing_is_told(tuner: Tuner, change: tuple[Any, ...], said: str) -> None:
    source = job(MOVES["one stays"]).replace(*change)
    start(tuner, source, "fixed", knobs={"cuda_prefetch": True}, steps=8)
    tuner.receive()
    assert said in tuner.receive().no_effect["cuda_prefetch"]


def test_a_gpu_without_room_for_another_batch_is_told_and_the_job_goes_on(tuner: Tuner) -> None:
    source = job(PLAIN).replace("pretend_cuda\n", "pretend_cuda; pretend_cuda.FULL = True\n", 1)
    start(tuner, source, "fixed", knobs={"cuda_prefetch": True}, steps=8)
    tuner.receive()
    record = tuner.receive()
    assert "out of memory" in record.no_effect["cuda_prefetch"] and len(record.losses) == 8


@pytest.mark.slow
def test_a_launched_job_has_it_too(tuner: Tuner) -> None:
    source = job(PLAIN).replace(*ONE_EPOCH).replace("cuda is None and count", "count")
    expected = bare_losses(tuner, source)
    start(tuner, source, "launch", knobs={"cuda_prefetch": True})
    status, printed, errors = tuner.finish()
    assert status == 0, errors
    lines = [line.split() for line in printed.splitlines()]
    assert [loss for loss, _ in lines] == expected
    assert in_order([whose for _, whose in lines]) == ["own", "ahead"]
