"""A trace is read completely, whatever its layout; broken parts are left out or reported."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.explain.table import operators
from autotune.explain.timeline import covered, device_busy_s, kernels_per_step, timeline
from autotune.explain.trace import read_trace


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


# Two iterations of a job on a GPU: a product that launches a kernel of 40 µs, and a concurrent copy
# of 1 MB on another stream.
GPU = [
    event("user_annotation", "ProfilerStep#0", 1000, 100),
    event("user_annotation", "ProfilerStep#1", 1100, 100),
    event("user_annotation", "ProfilerStep#2", 1200, 1),  # torch opens an extra one at the end
    event("user_annotation", "autotune::forward", 1000, 60),
    event("user_annotation", "Optimizer.step#SGD.step", 1080, 10),
    *(
        e
        for n in (0, 1)
        for e in (
            event(
                "cpu_op",
                "aten::linear",
                1000 + 100 * n,
                30,
                **{
                    "External id": 10 + n,
                    "Input Dims": [[64, 32], [16, 32], [16]],
                    "Input type": ["float", "float", "float"],
                    "Concrete Inputs": ["", "", ""],
                },
            ),
            event(
                "cpu_op",
                "aten::addmm",
                1005 + 100 * n,
                20,
                **{
                    "External id": 20 + n,
                    "Input Dims": [[16], [64, 32], [32, 16], [], []],
                    "Input type": ["float", "float", "float", "Scalar", "Scalar"],
                    "Concrete Inputs": ["", "", "", "1", "1"],
                },
            ),
            event(
                "cuda_runtime",
                "cudaLaunchKernel",
                1010 + 100 * n,
                5,
                **{"External id": 20 + n, "correlation": n},
            ),
            event(
                "kernel",
                "ampere_sgemm_64x32",
                1030 + 100 * n,
                40 + 10 * n,
                7,
                **{"External id": 20 + n, "stream": 7},
            ),
            event(
                "gpu_memcpy",
                "Memcpy HtoD (Pageable -> Device)",
                1040 + 100 * n,
                20,
                9,
                bytes=1_000_000,
                stream=9,
            ),
        )
    ),
    {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "tid": 1,
        "ts": 1001,
        "args": {"Bytes": 5},
    },
    {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 1300},
]


def write(path: Path, events: list[dict[str, Any]], layout: str = "torch") -> Path:
    if layout == "torch":  # like kineto: every event on its own lines
        text = (
            '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  '
            + ",\n  ".join(json.dumps(e, indent=2).replace("\n", "\n  ") for e in events)
            + '\n  ],\n  "traceName": "t"\n}'
        )
    else:
        text = json.dumps({"traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("layout", ["torch", "compact"])
@pytest.mark.parametrize("name", ["t.json.gz", "t.json"])
def test_what_ran_on_the_device_is_told_from_what_ran_on_the_host(
    tmp_path: Path, layout: str, name: str
) -> None:
    trace = read_trace(write(tmp_path / name, GPU, layout))
    assert [(i.name, i.start_s) for i in trace.iterations] == [
        ("0", 0.0),
        ("1", pytest.approx(100e-6)),
    ]
    assert [p.name for p in trace.phases] == ["forward"]
    assert [op.name for op in trace.ops] == ["aten::linear", "aten::addmm"] * 2
    linear, addmm = trace.ops[:2]
    assert (linear.parent, addmm.parent) == (-1, 0)
    assert linear.self_s == pytest.approx(10e-6) and addmm.self_s == pytest.approx(20e-6)
    assert addmm.device_s == pytest.approx(40e-6) and linear.device_s == 0
    assert addmm.signature.shapes[:3] == ((16,), (64, 32), (32, 16)) and addmm.signature.dtypes == (
        "float32",
    ) * 3 + ("", "")
    assert [c.nbytes for c in trace.copies] == [1_000_000] * 2 and trace.copies[0].to_device


def test_the_device_was_busy_where_kernels_or_copies_ran(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.json.gz", GPU))
    assert kernels_per_step(trace) == 1
    # the copies overlap with the kernels
    assert device_busy_s(trace) == pytest.approx((40 + 50) / 2 * 1e-6)
    assert covered([(0, 2), (1, 3), (5, 9)], 0.5, 6) == pytest.approx(3.5)
    spans = timeline(trace)
    assert {s.lane for s in spans} == {"forward", "device", "copy"}
    assert all(s.start_s >= 0 and s.start_s + s.duration_s <= 200e-6 + 1e-9 for s in spans)


def test_what_a_host_that_does_not_wait_has_queued_counts_until_it_is_done(tmp_path: Path) -> None:
    late = event("kernel", "ampere_sgemm_64x32", 1210, 300, 7, stream=7)
    trace = read_trace(write(tmp_path / "t.json.gz", [*GPU, late]))
    assert device_busy_s(trace) == pytest.approx((40 + 50 + 300) / 2 * 1e-6)


def test_an_evaluation_between_iterations_is_no_training(tmp_path: Path) -> None:
    away = event("user_annotation", "autotune::away", 1100, 100)
    whole = read_trace(write(tmp_path / "t.json.gz", [*GPU, away]))
    trace = whole.training()
    assert [(op.name, op.parent) for op in trace.ops] == [("aten::linear", -1), ("aten::addmm", 0)]
    assert operators(trace)[0].calls == 1 and kernels_per_step(trace) == 0.5
    assert [k.op for k in trace.kernels] == [1] and len(trace.copies) == 1
    assert device_busy_s(whole) == pytest.approx(40 / 2 * 1e-6)


def test_rows_of_a_device_job_go_by_device_time(tmp_path: Path) -> None:
    rows = operators(read_trace(write(tmp_path / "t.json.gz", GPU)))
    addmm = rows[0]
    assert (addmm.name, addmm.calls, addmm.kernels) == ("aten::addmm", 2, ("ampere_sgemm_64x32",))
    assert (addmm.self_time_s, addmm.min_s, addmm.max_s, addmm.share) == pytest.approx(
        (90e-6, 40e-6, 50e-6, 1.0)
    )
    assert addmm.self_cpu_s == pytest.approx(40e-6) and addmm.flops == 2 * 64 * 32 * 16
    linear = rows[1]
    assert linear.total_time_s == pytest.approx(90e-6) and linear.self_time_s == 0
    assert linear.flops is None and "aten::addmm" in linear.why


def test_a_trace_that_is_cut_off_or_none_at_all_is_named(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.json.gz", GPU).read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "other.json").write_text('{"a": 1}')
    for name in ("cut.json.gz", "other.json"):
        with pytest.raises(ValueError, match="trace"):
            read_trace(tmp_path / name)
    with pytest.raises(OSError):
        read_trace(tmp_path / "none.json.gz")


def test_one_bad_event_costs_only_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", GPU)
    path.write_text(path.read_text().replace('"ampere_sgemm_64x32"', '"ampere_"sgemm"_64x32"', 1))
    trace = read_trace(path)
    assert (len(trace.kernels), len(trace.ops)) == (1, 4)


def test_a_job_without_a_device_has_no_busy_time(tmp_path: Path) -> None:
    host = [e for e in GPU if e.get("cat") not in ("kernel", "gpu_memcpy", "cuda_runtime")]
    trace = read_trace(write(tmp_path / "t.json", host))
    assert device_busy_s(trace) is None and kernels_per_step(trace) == 0
    assert operators(trace)[0].self_time_s == pytest.approx(40e-6)
