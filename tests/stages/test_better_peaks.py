"""If an operator of the job exceeds a peak, the peak was measured too low: it is measured again,
and the highest value counts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.explain.peaks import beside_vendor
from autotune.explain.records import Operator, Side
from autotune.stages.explain import better_peaks

FIRST = {"float32": 50e9, "memory": 20e9, "dispatch": 1e-6}
OBSERVATION: Any = SimpleNamespace(
    job=SimpleNamespace(device="cpu", intra_op_threads=2, matmul_precision="highest"),
    machine=SimpleNamespace(device_index=0, device_name="cpu"),
    defaults={},
)


def product(flops_per_s: float) -> Operator:
    return Operator(
        "aten::mm",
        "",
        "float32 float32",
        10,
        1.0,
        0.5,
        1.0,
        0.1,
        0.1,
        0.1,
        flops=0.1 * flops_per_s,
        nbytes=1e6,
    )


def better(again: dict[str, float], *rates: float) -> tuple[dict[str, float], int]:
    """(the peaks that count, how often they were measured again)."""
    asked = []

    def measure_peaks(threads: int, device: str, again_: bool = False) -> dict[str, float]:
        asked.append((threads, device, again_))
        return again

    context: Any = SimpleNamespace(
        executor=SimpleNamespace(measure_peaks=measure_peaks),
        progress=SimpleNamespace(note=lambda text: None),
    )
    sides = {f"side{i}": Side(operators=(product(rate),)) for i, rate in enumerate(rates)}
    found = better_peaks(
        context, OBSERVATION, dict.fromkeys(sides, {}), sides, beside_vendor(FIRST, "")
    )
    assert all(call == (2, "cpu", True) for call in asked)
    return {peak.name: peak.value for peak in found}, len(asked)


@pytest.mark.parametrize(
    ("rates", "again", "float32", "measured"),
    [
        ((40e9,), 70e9, 50e9, 0),  # nothing exceeds it
        ((60e9, 55e9), 70e9, 70e9, 1),  # the machine was slow at the first measurement
        ((60e9, 80e9), 70e9, 80e9, 1),  # the job exceeds both measurements
        ((60e9,), 30e9, 60e9, 1),  # a second measurement on a busy machine lowers nothing
    ],
)
def test_the_best_seen_counts(
    rates: tuple[float, ...], again: float, float32: float, measured: int
) -> None:
    assert better({**FIRST, "float32": again}, *rates) == ({**FIRST, "float32": float32}, measured)
