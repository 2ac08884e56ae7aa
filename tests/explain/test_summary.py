"""The performance summary: every figure comes from the iterations it is meant for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.explain.records import Operator, Peak
from autotune.explain.summary import Compute, Copies, compute_of, copies_of, metrics, summarize
from autotune.explain.trace import Copy, Kernel, Stretch, Trace
from autotune_trials.protocol.messages import Window

# 20 slow iterations of warm-up, then 8 and 12 ms alternately, a quarter of each spent waiting for a
# batch of 32.
TIMES = (0.5,) * 20 + (0.008, 0.012) * 40
WINDOW = Window(
    times_s=TIMES,
    samples=(32.0,) * len(TIMES),
    phases_s={"data": sum(TIMES) / 4, "forward": 3 * sum(TIMES) / 4},
    data_s=tuple(t / 4 for t in TIMES),
    peak_memory_gib=1.5,
    session_load=1.5,
)


def test_costs_and_rates_are_those_of_the_steady_iterations() -> None:
    found = summarize(WINDOW, device="cpu", cores=2)
    assert found is not None
    assert found.steps_skipped == 20 and found.steps == 80
    assert found.batch_cost_s == pytest.approx(0.010) and found.reader_cost_s == pytest.approx(
        0.0025
    )
    assert found.reader_ratio == pytest.approx(0.25)
    # all samples over all time, not the mean of 4000 and 2667
    assert found.ips_mean == pytest.approx(3200)
    assert (found.ips_max, found.ips_min) == (pytest.approx(4000), pytest.approx(32 / 0.012))
    assert found.ips_variance == pytest.approx(((4000 - 32 / 0.012) / 2) ** 2)
    assert found.peak_memory_gib == 1.5


def test_the_reader_costs_what_the_device_waited_and_not_what_the_cpu_did() -> None:
    each = {"data": (0.001,) * len(TIMES), "forward": tuple(t - 0.001 for t in TIMES)}
    found = summarize(replace(WINDOW, phase_times_s=each), device="cuda", cores=2)
    assert found is not None and found.reader_cost_s == pytest.approx(0.001)


def test_utilisation_of_a_cpu_job_is_its_share_of_the_cores() -> None:
    found = summarize(WINDOW, device="cpu", cores=2, busy_s=0.009)
    assert found is not None and found.device_utilisation == pytest.approx(0.75)
    assert "2 cores" in found.utilisation_of
    assert found.host_to_device_bytes is None and found.host_to_device_bytes_per_s is None
    nothing = summarize(replace(WINDOW, session_load=0.0), device="cpu", cores=2)
    assert nothing is not None and nothing.device_utilisation is None


def test_utilisation_of_a_device_is_the_share_it_had_work() -> None:
    """The device's time is known from the profile, the iteration's from where nothing watched."""
    found = summarize(WINDOW, device="cuda", cores=2, busy_s=0.009, copies=Copies(6e6, 0.003, 12))
    assert found is not None and "device" in found.utilisation_of
    assert found.device_utilisation == pytest.approx(0.9)
    assert found.host_to_device_bytes == pytest.approx(
        5e5
    ) and found.host_to_device_bytes_per_s == pytest.approx(2e9)


def test_model_flops_against_the_measured_peak() -> None:
    found = summarize(WINDOW, device="cpu", cores=2, compute=Compute(4e8, 1e11, "float32"))
    assert found is not None and found.model_flops == 4e8
    assert found.mfu == pytest.approx(4e8 / 0.010 / 1e11) and "float32" in found.mfu_of
    without = summarize(WINDOW, device="cpu", cores=2, compute=Compute(4e8))
    assert without is not None and without.mfu is None and without.model_flops == 4e8


def test_a_mixture_of_number_formats_is_held_to_the_peak_of_each() -> None:
    """A step of 1 GFLOP in float32 and 0.9 in bfloat16, which is four times as fast: against the
    float32 peak alone, it would reach 155%.
    """
    peaks = [Peak("float32", 1e11), Peak("bfloat16", 4e11), Peak("memory", 1e10)]
    rows = [
        _product("float32", 1e9),
        _product("bfloat16 bfloat16", 0.9e9),
        _product("float16", 1e6),
    ]
    compute = compute_of(1.9e9, rows, peaks, tf32=False)
    assert compute is not None and compute.peak_name == "float32 and bfloat16"
    assert compute.peak == pytest.approx(1.901e9 / (1.001e9 / 1e11 + 0.9e9 / 4e11))
    found = summarize(WINDOW, device="cpu", cores=2, compute=replace(compute, flops=1e10))
    assert found is not None and found.mfu == 1.0, "more than a peak is never told"


def _product(dtypes: str, flops: float) -> Operator:
    return Operator(
        "aten::mm", "", dtypes, 1, 1e-3, 0.1, 1e-3, 1e-3, 1e-3, 1e-3, flops=flops, nbytes=1e6
    )


@pytest.mark.parametrize("times", [(), (0.0, 0.0)])
def test_nothing_timed_is_no_summary(times: tuple[float, ...]) -> None:
    assert summarize(Window(times, (1.0,) * len(times), {}), device="cpu", cores=1) is None


def test_metrics_have_the_same_keys_on_both_sides() -> None:
    one = summarize(WINDOW, device="cpu", cores=2)
    found = metrics({"baseline": one, "winner": one, "lost": None})
    sides = [
        {key.rpartition("/")[2] for key in found if f"/{side}/" in key}
        for side in ("baseline", "winner", "lost")
    ]
    assert (
        sides[0] == sides[1]
        and sides[2] == set()
        and {"ips", "reader_ratio", "device_utilisation"} <= sides[0]
    )
    assert "mfu" not in sides[0]  # unknown, not zero


def test_copies_to_the_device_are_those_of_the_trace() -> None:
    copies = (
        Copy("Memcpy HtoD (Pinned -> Device)", 0.0, 0.001, 4000),
        Copy("Memcpy DtoH (Device -> Pageable)", 0.0, 0.5, 8),
        Copy("Memcpy HtoD (Pageable -> Device)", 0.1, 0.003, 2000),
    )
    steps = (Stretch("0", 0.0, 0.1), Stretch("1", 0.1, 0.1))
    assert copies_of(
        Trace(iterations=steps, kernels=(Kernel("k", 0.0, 0.1),), copies=copies)
    ) == Copies(6000.0, pytest.approx(0.004), 2)
    assert copies_of(Trace(iterations=steps)) is None  # a CPU job


def test_the_peak_is_that_of_the_formats_it_is_computed_in() -> None:
    def row(dtypes: str, flops: float | None) -> Operator:
        return Operator("aten::mm", "", dtypes, 10, 0.1, 0.5, 0.1, 0.01, 0.01, 0.01, flops=flops)

    peaks = (
        Peak("float32", 1e12),
        Peak("tf32", 4e12),
        Peak("bfloat16", 8e12),
        Peak("memory", 1e11),
    )
    rows = (
        row("float32 float32", 3e6),
        row("bfloat16 bfloat16", 2e6),
        row("bfloat16", 2e6),
        row("float32", None),
    )
    assert compute_of(1e9, rows, peaks, tf32=False) == Compute(
        1e9, pytest.approx(7e6 / (3e6 / 1e12 + 4e6 / 8e12)), "bfloat16 and float32"
    )
    assert compute_of(1e9, rows[:1], peaks, tf32=True) == Compute(1e9, 4e12, "tf32")
    assert compute_of(1e9, rows, (), tf32=False) == Compute(1e9)  # nothing was measured
    assert compute_of(None, rows, peaks, tf32=False) is None
