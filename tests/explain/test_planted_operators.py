"""A program with a large product, a large copy and many tiny operators, profiled by the real agent:
the operator table identifies each.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.executors.base import FixedRun
from autotune.executors.local import LocalExecutor
from autotune.explain.flops import model_flops
from autotune.explain.peaks import beside_vendor
from autotune.explain.records import Operator, Peak, Side
from autotune.job.load import load_job
from autotune.stages.explain import describe, with_frames
from autotune_trials.protocol.messages import Record, SessionConfig

pytestmark = pytest.mark.slow  # run every time: tests/cli/test_profile.py

PLANTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(512, 8), torch.randint(0, 4, (512,)))
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
left, right = torch.randn(384, 384), torch.randn(384, 384)
source, target = torch.ones(1 << 22), torch.ones(1 << 22)
tiny = torch.ones(4)
for epoch in range(1000):
    for x, y in DataLoader(data, batch_size=16):
        torch.mm(left, right)
        target.copy_(source)
        for _ in range(7):
            torch.sub(tiny, tiny)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@dataclass(frozen=True)
class Profiled:
    record: Record
    side: Side
    peaks: tuple[Peak, ...]
    run_dir: Path

    def row(self, name: str, shapes: str) -> Operator:
        return next(r for r in self.side.operators if (r.name, r.shapes) == (name, shapes))


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "train.py").write_text(PLANTED)
    (folder / "job.yaml").write_text(
        f"command: python train.py\nenv: {{XDG_CACHE_HOME: '{folder}', OMP_NUM_THREADS: '1'}}\n"
    )
    executor = LocalExecutor(load_job(folder / "job.yaml"), folder / "run")
    warnings: list[str] = []
    context: Any = SimpleNamespace(
        run_dir=folder / "run",
        progress=SimpleNamespace(warning=warnings.append, note=warnings.append),
        executor=executor,
        recorded=lambda key, label, measure: measure(),
        out_of_time_at=lambda *args: False,
    )
    try:
        record = executor.run_fixed(FixedRun({}, seed=0, steps=6, profile=True, label="profile"))
        peaks = beside_vendor(executor.measure_peaks(1, "cpu"), "")
        observation: Any = SimpleNamespace(
            job=SimpleNamespace(device="cpu", matmul_precision="highest"),
            machine=SimpleNamespace(cores=2),
            defaults={},
            startup_s=executor.last_hello.startup_s,
        )
        sides, notes = with_frames(
            context,
            observation,
            {"baseline": describe(context, observation, "baseline", {}, record, peaks)},
        )
        side = sides["baseline"]
    finally:
        executor.close()
    assert not warnings and not notes
    return Profiled(record, side, peaks, folder / "run")


def test_the_product_is_compute_bound(profiled: Profiled) -> None:
    found = profiled.row("aten::mm", "[384, 384] [384, 384]")
    assert found.calls == SessionConfig.profile_steps
    assert (found.flops, found.nbytes) == (2 * 384**3, 4 * 3 * 384**2)
    assert found.bound == "compute" and 0 < (found.of_roof or 0) <= 1


def test_the_copy_is_memory_bound(profiled: Profiled) -> None:
    found = profiled.row("aten::copy_", "[4194304] [4194304]")
    assert (found.flops, found.nbytes, found.bound) == (0, 2 * 4 * (1 << 22), "memory")
    assert found.achieved == pytest.approx(found.nbytes / found.mean_s)


def test_the_tiny_operator_is_overhead_bound(profiled: Profiled) -> None:
    found = profiled.row("aten::sub", "[4] [4]")
    assert (found.calls, found.flops, found.nbytes, found.bound) == (
        7 * SessionConfig.profile_steps,
        4,
        48,
        "overhead",
    )


def test_times_add_up(profiled: Profiled) -> None:
    rows = profiled.side.operators
    assert sum(r.share for r in rows) == pytest.approx(1.0)
    assert [r.self_time_s for r in rows] == sorted((r.self_time_s for r in rows), reverse=True)
    assert all(
        r.min_s <= r.mean_s * (1 + 1e-9)
        and r.mean_s <= r.max_s * (1 + 1e-9)
        and r.self_time_s <= r.total_time_s * (1 + 1e-9)
        for r in rows
    )
    assert rows[0].name in ("aten::mm", "aten::copy_")


def test_the_models_flops_are_those_of_its_products(profiled: Profiled) -> None:
    linear = 2 * 16 * 8 * 4  # forward, and backward for the weights; the input needs no gradient
    assert model_flops(profiled.side.operators, SessionConfig.profile_steps) == pytest.approx(
        2 * 384**3 + 2 * linear
    )


def test_all_rows_are_in_the_csv(profiled: Profiled) -> None:
    text = (profiled.run_dir / profiled.side.table).read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(profiled.side.operators)
    assert (
        rows[0]["name"] == profiled.side.operators[0].name
        and float(rows[0]["share"]) == profiled.side.operators[0].share
    )


def test_python_frames_are_in_a_trace_of_their_own(profiled: Profiled) -> None:
    def kinds(path: str) -> set[str]:
        with gzip.open(profiled.run_dir / path) as file:
            return {e.get("cat", "") for e in json.load(file)["traceEvents"]}

    assert "python_function" not in kinds(profiled.side.trace)
    assert "python_function" in kinds(profiled.side.stacks)
    assert len(profiled.record.window.times_s) == 6  # profiled iterations are not timed


def test_the_timeline_shows_the_phases_of_three_iterations(profiled: Profiled) -> None:
    lanes = [s.lane for s in profiled.side.timeline]
    assert lanes.count("backward") == 3 and {"data", "forward", "backward", "optimizer"} <= set(
        lanes
    )
    # there is no device
    assert profiled.side.idle_share is None and profiled.side.kernels_per_step == 0


def test_without_kernels_the_operators_of_a_job_on_a_gpu_are_not_explained(
    profiled: Profiled,
) -> None:
    """CUPTI may not match the driver: then only times of the host are in the trace."""
    warnings: list[str] = []
    context: Any = SimpleNamespace(
        run_dir=profiled.run_dir, progress=SimpleNamespace(warning=warnings.append)
    )
    observation: Any = SimpleNamespace(
        job=SimpleNamespace(device="cuda", matmul_precision="highest"),
        machine=SimpleNamespace(cores=2),
        defaults={},
    )
    side = describe(context, observation, "baseline", {}, profiled.record, profiled.peaks)
    assert side.trace and side.summary is not None and not side.operators
    assert "shows no kernels" in warnings[0]
