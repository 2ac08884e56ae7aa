"""What bounds an operator follows from its work, its time and the peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.explain.peaks import beside_vendor
from autotune.explain.records import Operator
from autotune.explain.roofline import HANDED_ON, judge, judged, raised, roof_for
from autotune.words import scaled_words

# the ridge is at 5 FLOP per byte
PEAKS = {"float32": 100e9, "bfloat16": 400e9, "memory": 20e9, "dispatch": 1e-6}


def operator(
    flops: float | None,
    nbytes: float | None,
    mean_s: float,
    name: str = "aten::mm",
    dtypes: str = "float32 float32",
    why: str = "",
) -> Operator:
    intensity = flops / nbytes if flops is not None and nbytes else None
    return Operator(
        name,
        "",
        dtypes,
        10,
        10 * mean_s,
        0.5,
        10 * mean_s,
        mean_s,
        mean_s,
        mean_s,
        flops=flops,
        nbytes=nbytes,
        intensity=intensity,
        why=why,
    )


def verdict(row: Operator) -> Operator:
    return judge(row, roof_for(row.dtypes, PEAKS))


def test_much_arithmetic_for_its_bytes_is_compute_bound() -> None:
    found = verdict(operator(100e6, 1e6, 2e-3))
    assert (found.bound, found.of_roof, found.achieved) == (
        "compute",
        pytest.approx(0.5),
        pytest.approx(50e9),
    )
    assert (
        found.why
        == "A call takes 2.00 ms, its 100 MFLOP and 1 MB need 1.00 ms at the float32 peak: 50% of"
        " the roof."
    )


def test_the_same_in_bfloat16_has_a_higher_roof() -> None:
    found = verdict(operator(100e6, 0.5e6, 2e-3, dtypes="bfloat16 bfloat16"))
    assert (found.bound, found.of_roof) == ("compute", pytest.approx(0.125))


def test_a_copy_is_memory_bound_and_measured_in_bytes() -> None:
    found = verdict(operator(0.0, 20e6, 1.25e-3, name="aten::copy_"))
    assert (found.bound, found.of_roof, found.achieved) == (
        "memory",
        pytest.approx(0.8),
        pytest.approx(16e9),
    )
    assert "FLOP" not in found.why


def test_just_beside_the_ridge() -> None:
    assert verdict(operator(5.1e6, 1e6, 1e-3)).bound == "compute"
    assert verdict(operator(4.9e6, 1e6, 1e-3)).bound == "memory"


def test_less_work_than_the_call_itself_is_overhead() -> None:
    found = verdict(operator(4.0, 48.0, 3e-6, name="aten::mul"))
    assert found.bound == "overhead" and "1.00 µs that calling any operator takes" in found.why
    # also little work, but done in hardly more time than it needs: bound by memory
    assert verdict(operator(0.0, 0.9e-6 * 20e9, 1.5e-6)).bound == "memory"
    # work that takes longer than a call is no overhead, however slow it is
    assert verdict(operator(0.0, 1.1e-6 * 20e9, 30e-6)).bound == "memory"


def test_a_kernel_that_runs_longer_than_a_launch_takes_is_no_overhead() -> None:
    """Times on a device are those of kernels: the host has long launched the next one."""

    def bounds(mean_s: float) -> tuple[str, str]:
        row = operator(0.0, 0.2e-6 * 20e9, mean_s)  # it needs a fifth of a launch
        return verdict(row).bound, verdict(replace(row, self_device_s=row.self_time_s)).bound

    assert bounds(0.8e-6) == ("overhead", "overhead")
    assert bounds(5e-6) == ("overhead", "memory")


def test_what_is_faster_than_the_memory_was_in_a_cache() -> None:
    found = verdict(operator(0.0, 20e6, 0.5e-3, name="aten::copy_"))
    assert found.of_roof == 1.0 and "cache" in found.why and found.above == "cache"
    # within the error of a measured peak
    assert "cache" not in verdict(operator(0.0, 20e6, 0.95e-3)).why


def test_attention_beyond_the_roof_is_explained() -> None:
    """A kernel that skips what a causal mask hides computes half of what is counted."""
    row = operator(400e6, 1e6, 2e-3, name="aten::_flash_attention_forward")
    assert "causal mask" in verdict(row).why and verdict(row).above == "fewer products"


def test_only_what_was_surely_done_raises_a_peak() -> None:
    fast = operator(240e6, 1e6, 2e-3)
    assert raised(PEAKS, [fast]) == {**PEAKS, "float32": 120e9}
    assert judged([fast], raised(PEAKS, [fast]))[0].of_roof == 1.0
    for no_proof in (
        operator(240e6, 1e6, 2e-3, name="aten::mkldnn_convolution"),
        operator(0.0, 3e9, 0.1, name="aten::add_"),
        operator(2.4e6, 1e4, 20e-6),  # too short to be told from the profiler's clock
    ):
        assert raised(PEAKS, [no_proof]) == PEAKS
    assert raised(PEAKS, [fast], tf32=True) == PEAKS, "a processor may have done it in bfloat16"
    assert raised({**PEAKS, "tf32": 110e9}, [fast], tf32=True) == {**PEAKS, "tf32": 120e9}


def test_what_cannot_be_judged_says_why() -> None:
    assert verdict(
        operator(None, None, 1e-3, why="how much it computes is not known here")
    ).why.startswith("Not judged: how much")
    assert (
        verdict(operator(None, None, 1e-3, why="how much it computes is not known here")).bound
        == ""
    )
    assert (
        judge(operator(1.0, 1.0, 1e-3), None).why
        == "Not judged: the peaks of this machine were not measured."
    )
    assert judge(operator(1.0, 1.0, 1e-3), None).achieved == pytest.approx(1e3)
    assert verdict(operator(1.0, 1.0, 0.0)).bound == ""


def test_an_operator_that_hands_its_work_on_is_dispatch() -> None:
    found = verdict(
        operator(
            None,
            None,
            5e-6,
            name="aten::convolution",
            why=f"{HANDED_ON} aten::mkldnn_convolution it calls",
        )
    )
    assert found.bound == "overhead" and "dispatch" in found.why


def test_tf32_counts_where_it_may_be_used() -> None:
    peaks = {**PEAKS, "tf32": 800e9}
    rows = (operator(100e6, 1e6, 2e-3), operator(100e6, 1e6, 2e-3, name="aten::cudnn_convolution"))
    assert [r.of_roof for r in judged(rows, peaks)] == pytest.approx([0.5, 0.0625])
    assert [r.of_roof for r in judged(rows, peaks, tf32=True)] == pytest.approx([0.0625, 0.0625])


def test_types_without_a_peak_of_their_own_are_held_to_float32() -> None:
    assert roof_for("float64", PEAKS).dtype == "float32"  # type: ignore[union-attr]
    assert roof_for("int64 bfloat16", PEAKS).dtype == "bfloat16"  # type: ignore[union-attr]
    assert roof_for("float32", {}) is None and roof_for("float32", {"float32": 1.0}) is None


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (268435456, "FLOP", "268 MFLOP"),
        (0.0, "B", "0 B"),
        (999.9e6, "B/s", "1 GB/s"),
        (float("nan"), "B", "–"),
        (17.46e12, "FLOP/s", "17.5 TFLOP/s"),
    ],
)
def test_rates_in_words(value: float, unit: str, said: str) -> None:
    assert scaled_words(value, unit) == said


def test_measured_peaks_stand_beside_the_vendors() -> None:
    peaks = {
        p.name: p
        for p in beside_vendor(
            {"float32": 6e12, "float16": 40e12, "memory": 250e9, "dispatch": 5e-6},
            "Tesla V100-SXM2-16GB",
        )
    }
    assert (peaks["float32"].vendor, peaks["float16"].vendor, peaks["memory"].vendor) == (
        15.7e12,
        125e12,
        900e9,
    )
    assert peaks["memory"].source == "NVIDIA V100 data sheet" and (
        peaks["dispatch"].vendor,
        peaks["dispatch"].source,
    ) == (None, "")
    assert all(p.vendor is None for p in beside_vendor(PEAKS, "AMD EPYC"))
