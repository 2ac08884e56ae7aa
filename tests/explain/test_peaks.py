"""What this machine reaches: measured, kept, and set beside what the vendor promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from autotune.executors.base import Executor
from autotune.executors.replay import ReplayExecutor, ReplayTable
from autotune.explain.peaks import cache_file, machine_peaks
from autotune.explain.vendor import vendor_peaks
from autotune_spaces.machine import probe
from autotune_trials.measure import peaks

ALIKE = 0.15  # measured peaks against an independent measurement in the same run
ROUNDS = 5


class Counting(ReplayExecutor):
    def __init__(self, answer: Mapping[str, float]) -> None:
        super().__init__(ReplayTable(cost_s=0.001))
        self.answer, self.asked = answer, 0

    def measure_peaks(self, threads: int, device: str) -> Mapping[str, float]:
        self.asked += 1
        return self.answer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_peaks_agree_with_numpys_own_matmul_and_copy() -> None:
    """NumPy's BLAS and memcpy know nothing of torch. Rounds alternate, since other load may come and go."""
    mine: dict[str, float] = {"float32": 0.0, "memory": 0.0}
    others = dict(mine)
    a, b = (np.random.default_rng(i).normal(size=(2048, 2048)).astype("float32") for i in range(2))
    source = np.ones(64 * 2**20, dtype="float32")
    target = np.empty_like(source)
    for _ in range(ROUNDS):
        measured = peaks.measure(1, "cpu")
        mine = {name: max(mine[name], measured[name]) for name in mine}
        others["float32"] = max(others["float32"], 2 * 2048**3 / _seconds(lambda: a @ b))
        others["memory"] = max(others["memory"], 2 * source.nbytes / _seconds(lambda: np.copyto(target, source)))
        if all(abs(mine[name] / others[name] - 1) < ALIKE for name in mine):
            break
    for name in mine:
        assert mine[name] == pytest.approx(others[name], rel=ALIKE), name


def _seconds(call) -> float:  # type: ignore[no-untyped-def]
    call()
    best = float("inf")
    for _ in range(5):
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
    return best


def test_measured_once_a_machine(tmp_path: Path) -> None:
    executor = Counting({"float32": 2e11, "memory": 3e10, "strange": 1.0, "bfloat16": float("nan")})
    machine = probe()
    first = machine_peaks(executor, machine, 2)
    assert [(p.name, p.value) for p in first] == [("float32", 2e11), ("memory", 3e10)]
    assert machine_peaks(executor, machine, 2) == first
    assert executor.asked == 1
    machine_peaks(executor, machine, 1)
    machine_peaks(executor, replace(machine, torch_version="9"), 2)
    assert executor.asked == 3


@pytest.mark.parametrize("torn", ["", "[1]", '{"float32": "fast"}', "\x00"])
def test_a_torn_cache_is_measured_again(torn: str) -> None:
    path = cache_file(probe(), 2, "cpu")
    path.parent.mkdir(parents=True)
    path.write_text(torn)
    executor = Counting({"float32": 2e11})
    machine_peaks(executor, probe(), 2, "cpu")
    assert executor.asked == 1
    assert json.loads(path.read_text()) == {"float32": 2e11}


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    assert machine_peaks(Counting({"float32": 2e11}), probe(), 2, "cpu")[0].value == 2e11


def test_no_peaks_where_nobody_can_measure_them() -> None:
    executor: Executor = ReplayExecutor(ReplayTable(cost_s=0.001))
    assert machine_peaks(executor, probe(), 2) == ()


@pytest.mark.parametrize(
    ("device", "bfloat16", "memory"),
    [("NVIDIA A100-SXM4-80GB", 312e12, 2039e9), ("NVIDIA A100-PCIE-40GB", 312e12, 1555e9), ("NVIDIA A100 80GB PCIe", 312e12, 1935e9),
     ("NVIDIA H100 80GB HBM3", 989.5e12, 3350e9), ("NVIDIA H100 PCIe", 756e12, 2000e9), ("NVIDIA L4", 121e12, 300e9)],
)  # fmt: skip
def test_the_vendors_figures(device: str, bfloat16: float, memory: float) -> None:
    figures, sheet = vendor_peaks(device)
    assert (figures["bfloat16"], figures["memory"]) == (bfloat16, memory)
    assert sheet.startswith("NVIDIA")


@pytest.mark.parametrize("device", ["AMD EPYC 9R14", "NVIDIA A10G", "NVIDIA L40", "NVIDIA GeForce RTX 4090 D", "NVIDIA H100 NVL"])
def test_devices_that_only_sound_alike_have_none(device: str) -> None:
    assert vendor_peaks(device) == ({}, "")
