"""malloc: retain in a real job: switched on and off in the running process, and set by variables
from the start.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.executors.base import FixedRun
from autotune.executors.local import LocalExecutor
from autotune.job.configs import live_knobs_of
from autotune.job.spec import JobSpec, SideEffects
from autotune.verdict.iterations import drop_start
from autotune.verdict.timing import anatomy
from autotune_spaces.base import Config, SearchSpace
from autotune_spaces.knobs import create
from autotune_trials.protocol.messages import Block, Window

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")

JOB = """
import ctypes, sys
import torch

class Churn(torch.nn.Module):
    def forward(self, x):
        parts = [torch.full((1 << 19,), float(i)) for i in range(8)]
        return x * sum(part[0] for part in parts)

if "--fixed" in sys.argv:
    ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: each of the parts gets a mapping of its own
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), Churn(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
losses = open("losses", "w", buffering=1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.write(loss.item().hex() + "\\n")
"""
SPACE = SearchSpace("test", (create("malloc"), create("gc")))
RETAIN: Config = {"malloc": "retain"}


@pytest.fixture
def executor(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalExecutor]:
    (tmp_path / "job.py").write_text(JOB)
    words = getattr(request, "param", ())
    spec = JobSpec(
        "job",
        (sys.executable, "job.py", *words),
        tmp_path,
        {"PYTHONPATH": ""},
        SPACE,
        hang_timeout_s=60.0,
        startup_timeout_s=120.0,
        side_effects=SideEffects(keep=("losses",)),
    )
    opened = LocalExecutor(spec, tmp_path / "run")
    yield opened
    opened.close()


def faults(window: Window | None) -> float:
    """Minor page faults of a steady iteration."""
    assert window is not None
    return anatomy(drop_start(window, len(window.times_s) // 2), 0).minor_faults


@pytest.mark.slow
@pytest.mark.parametrize("executor", [("--fixed",)], indirect=True)
def test_a_running_job_is_switched_there_and_back(executor: LocalExecutor, tmp_path: Path) -> None:
    configs: list[Config] = [{}, RETAIN, {}, RETAIN, {}]
    session = executor.open_live()
    reports = session.measure(
        [Block(str(i), live_knobs_of(c, SPACE), 16) for i, c in enumerate(configs)]
    )
    session.close()
    assert [(r.error, dict(r.no_effect)) for r in reports] == [("", {})] * len(configs)
    own, retained, back, again, end = (faults(r.window) for r in reports)
    assert own > 4000 and max(retained, again) < own / 4, (own, retained, back, again, end)
    # The thresholds are reverted at once, but free memory in the heap may serve the job for a
    # while.
    assert max(back, end) > own / 2, (own, retained, back, again, end)
    switched = (tmp_path / "losses").read_text().split()
    executor.run_fixed(FixedRun({}, seed=0, steps=len(switched)))
    plain = (tmp_path / "losses").read_text().split()
    same = min(len(switched), len(plain))
    assert same > 80 and switched[:same] == plain[:same]


@pytest.mark.slow
def test_a_fresh_run_has_it_by_variables_from_the_start(executor: LocalExecutor) -> None:
    plain, retained = (
        executor.run_fixed(FixedRun(config, seed=0, steps=60)) for config in ({}, RETAIN)
    )
    assert dict(retained.no_effect) == {}
    assert retained.losses == plain.losses
    assert (
        faults(retained.window) < 500 and plain.window.minor_faults > 0 and plain.window.user_s > 0
    )
