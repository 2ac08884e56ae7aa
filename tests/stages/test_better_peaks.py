"""If a matrix product of the job exceeds a peak, the peak was measured too low: the product's rate
counts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.explain.peaks import beside_vendor
from autotune.explain.records import Operator, Side
from autotune.stages.explain import better_peaks, uses_tf32
from autotune_trials.agent.facts.job_facts import _matmul_precision

OBSERVATION: Any = SimpleNamespace(
    job=SimpleNamespace(device="cpu", matmul_precision="highest"),
    machine=SimpleNamespace(device_name="cpu"),
    defaults={},
)


def test_tf32_is_seen_whichever_switch_the_job_uses() -> None:
    own = torch.backends.cuda.matmul.fp32_precision
    assert _matmul_precision(torch) == "highest" and not uses_tf32(OBSERVATION, {})
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        found = _matmul_precision(torch)
    finally:
        torch.backends.cuda.matmul.fp32_precision = own
    assert found == "tf32"
    job = SimpleNamespace(matmul_precision=found)
    assert uses_tf32(SimpleNamespace(job=job, defaults={}), {})  # type: ignore[arg-type]


def side(flops_per_s: float) -> Side:
    times = (10, 1.0, 0.5, 1.0, 0.1, 0.1, 0.1)
    return Side(
        operators=(
            Operator("aten::mm", "", "float32", *times, flops=0.1 * flops_per_s, nbytes=1e6),
        )
    )


@pytest.mark.parametrize(
    ("rates", "float32"), [((40e9,), 50e9), ((60e9, 55e9), 60e9), ((45e9, 80e9), 80e9)]
)
def test_the_best_seen_counts(rates: tuple[float, ...], float32: float) -> None:
    sides = {f"side{i}": side(rate) for i, rate in enumerate(rates)}
    measured = {"float32": 50e9, "memory": 20e9, "dispatch": 1e-6}
    found = better_peaks(OBSERVATION, dict.fromkeys(sides, {}), sides, beside_vendor(measured, ""))
    assert {peak.name: peak.value for peak in found} == {**measured, "float32": float32}
