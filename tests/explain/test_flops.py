"""FLOPs and bytes match what really ran: from a real trace, checked by hand and against torch's own
counter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.explain.flops import PRODUCTS_INSIDE, Kind, kind, model_flops, work
from autotune.explain.records import Operator
from autotune.explain.roofline import judge, judged, raised
from autotune.explain.table import operators
from autotune.explain.trace import Signature, read_trace


def rows(tmp_path: Path, run: Callable[[], Any]) -> tuple[Operator, ...]:
    """The operator table of one call of ``run``."""
    run()
    profiler = torch.profiler
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        run()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    return operators(read_trace(tmp_path / "trace.json"))


def row(found: tuple[Operator, ...], name: str) -> Operator:
    counted = [r for r in found if r.name == name and r.flops is not None]
    assert len(counted) == 1, [(r.name, r.shapes, r.why) for r in found]
    return counted[0]


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2)])
def test_a_product_a_copy_and_an_elementwise_operator_are_exact(
    tmp_path: Path, dtype: str, item: int
) -> None:
    a, b = (
        torch.ones(48, 80, dtype=getattr(torch, dtype)),
        torch.ones(80, 32, dtype=getattr(torch, dtype)),
    )
    x, y, out = (torch.ones(100, 7, dtype=getattr(torch, dtype)) for _ in range(3))

    def run() -> None:
        torch.mm(a, b)
        out.copy_(x)
        torch.mul(x, y)
        x.add_(y)
        torch.add(x, y[:1])  # broadcast: 7 elements are read

    found = rows(tmp_path, run)
    product, copied, times, added = (
        row(found, f"aten::{n}") for n in ("mm", "copy_", "mul", "add_")
    )
    assert (product.flops, product.nbytes) == (
        2 * 48 * 80 * 32,
        item * (48 * 80 + 80 * 32 + 48 * 32),
    )
    assert (copied.flops, copied.nbytes) == (0, item * 2 * 700)
    assert (times.flops, times.nbytes) == (700, item * 3 * 700)
    assert (added.flops, added.nbytes) == (700, item * 3 * 700)
    assert row(found, "aten::add").nbytes == item * (2 * 700 + 7)
    assert product.intensity == product.flops / product.nbytes
    assert (product.shapes, product.dtypes) == ("[48, 80] [80, 32]", f"{dtype} {dtype}")


def test_a_cast_reads_one_type_and_writes_the_other(tmp_path: Path) -> None:
    x = torch.ones(300)
    copied = row(rows(tmp_path, lambda: x.to(torch.bfloat16)), "aten::copy_")
    assert copied.nbytes == 300 * (4 + 2) and copied.dtypes == "bfloat16 float32"


def test_a_training_step_counts_as_torchs_own_counter_does(tmp_path: Path) -> None:
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(
                nn.Conv2d(3, 8, 3, stride=2, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 4, 3, dilation=2),
            )
            self.up = nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1)
            self.head = nn.Linear(6, 5)
            self.late = nn.LayerNorm(5)

        def forward(self, x: Any) -> Any:
            features = self.up(self.conv(x)).flatten(2).transpose(1, 2)
            scores = torch.bmm(features, features.transpose(1, 2)).softmax(-1)
            return self.late(self.head(scores @ features)).sum(1)

    torch.manual_seed(0)
    net, x, y = Net(), torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))

    def step() -> None:
        nn.functional.cross_entropy(net(x), y).backward()

    found = rows(tmp_path, step)
    with FlopCounterMode(display=False) as counter:
        step()
    assert model_flops(found, 1) == counter.get_total_flops() > 0
    assert model_flops(found, 2) == counter.get_total_flops() / 2
    assert all(r.why for r in found if r.flops is None)


def test_attention_counts_two_products_forward_and_five_backward(tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 4, n, 8, requires_grad=True) for n in (12, 20, 20))
    found = rows(
        tmp_path, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()
    )
    one = 2 * 2 * 4 * 12 * 20 * 8
    assert row(found, "aten::_scaled_dot_product_flash_attention_for_cpu").flops == 2 * one
    assert row(found, "aten::_scaled_dot_product_flash_attention_for_cpu_backward").flops == 5 * one
    assert model_flops(found, 1) == 7 * one


@pytest.mark.parametrize(
    ("groups", "stride", "padding", "transposed"),
    [(1, 1, 0, False), (2, 2, 1, False), (1, 2, 1, True), (2, 1, 0, True)],
)
def test_a_convolution_has_the_products_and_the_result_it_really_has(
    tmp_path: Path, groups: int, stride: int, padding: int, transposed: bool
) -> None:
    kind_of = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    conv = kind_of(4, 6, 3, stride=stride, padding=padding, groups=groups, bias=False)
    x = torch.randn(2, 4, 9, 11, requires_grad=True)
    result = conv(x)
    found = rows(tmp_path, lambda: conv(x).sum().backward())
    # every position of the smaller grid meets 3·3 positions of 4/groups inputs and 6 outputs
    # (transposed: the other way round)
    positions = 9 * 11 if transposed else result[0, 0].numel()
    flops = 2 * 2 * positions * 9 * 4 * 6 // groups
    forward = [
        r for r in found if r.flops and kind(r.name) is Kind.PRODUCT and "backward" not in r.name
    ]
    assert [r.flops for r in forward] == [flops]
    assert forward[0].nbytes == 4 * (x.numel() + conv.weight.numel() + result.numel())
    backward = row(found, "aten::convolution_backward")
    assert backward.flops == 2 * flops
    assert backward.nbytes == 4 * (result.numel() + 2 * x.numel() + 2 * conv.weight.numel())


def test_a_convolution_outside_onednn_is_counted_where_it_is_computed(tmp_path: Path) -> None:
    conv = torch.nn.Conv2d(4, 6, 3, bias=False).double()
    x = torch.randn(2, 4, 9, 11, dtype=torch.float64, requires_grad=True)
    found = rows(tmp_path, lambda: conv(x).sum().backward())
    flops = 2 * 2 * 7 * 9 * 9 * 4 * 6
    assert {r.name: r.flops for r in found if r.flops and "conv" in r.name} == {
        "aten::_slow_conv2d_forward": flops,
        "aten::_slow_conv2d_backward": 2 * flops,
    }


def test_what_cannot_be_counted_is_not_left_out_in_silence(tmp_path: Path) -> None:
    lstm, head = torch.nn.LSTM(64, 64), torch.nn.Linear(64, 10)
    x = torch.randn(32, 16, 64)
    table = rows(tmp_path, lambda: head(lstm(x)[0][-1]).sum().backward())
    assert model_flops(table, 1) is None
    table = rows(tmp_path, lambda: head(x).sum().backward())
    assert model_flops(table, 1)


def test_a_sparse_product_is_not_counted_as_a_dense_one(tmp_path: Path) -> None:
    graph = torch.eye(400).to_sparse()
    x = torch.randn(400, 64, requires_grad=True)
    table = rows(tmp_path, lambda: torch.sparse.mm(graph, x).sum().backward())
    products = [r for r in table if "[400, 400]" in r.shapes and kind(r.name) is Kind.PRODUCT]
    assert products and all(r.flops is None for r in products)
    assert any("sparse" in r.why for r in products)
    peaks = {"float32": 1.0, "memory": 1.0}
    assert raised(peaks, table)["float32"] == 1.0
    mixed = [replace(r, share=0.2) for r in products if "sparse" in r.why]
    mixed += [replace(mixed[0], flops=1e6, why="")]  # a dense one beside it
    assert model_flops(mixed, 1) is None and model_flops(judged(mixed, peaks), 1) is None
    dense = rows(tmp_path, lambda: (graph.to_dense() @ x).sum().backward())
    assert model_flops(dense, 1) == 4 * 400 * 400 * 64


def test_a_trace_without_strides_is_read_as_one_of_dense_tensors(tmp_path: Path) -> None:
    a = torch.ones(40, 40)
    rows(tmp_path, lambda: torch.mm(a, a))
    trace = tmp_path / "trace.json"
    trace.write_text(trace.read_text().replace("Input Strides", "Elsewhere"))
    assert row(operators(read_trace(trace)), "aten::mm").flops == 2 * 40**3


def test_an_optimizers_lists_are_counted_where_the_gradients_tell_their_type(
    tmp_path: Path,
) -> None:
    net = torch.nn.Linear(30, 10)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step() -> None:
        net(torch.ones(4, 30)).sum().backward()
        optimizer.step()

    found = row(rows(tmp_path, step), "aten::_fused_adamw_")
    elements = 30 * 10 + 10
    # read: parameter, gradient, two moments, two counters; written: all except the gradient
    assert found.nbytes == 4 * (7 * elements + 2)
    lists = Signature("aten::_fused_adamw_", (((3,),),), ("list",), ("",))
    assert work(lists).nbytes is None and "types" in work(lists).why


@pytest.mark.parametrize("name", ["my::kernel", "aten::sort", "triton_poi_fused_0"])
def test_what_is_not_known_says_so(name: str) -> None:
    found = work(Signature(name, ((3, 4),), ("float32",), ("",)))
    assert (found.flops, found.nbytes) == (None, None) and name in found.why


def test_without_shapes_there_is_no_figure() -> None:
    found = work(Signature("aten::mm"))
    assert found.flops is None and "shapes" in found.why


def test_reductions_and_gathers(tmp_path: Path) -> None:
    x, table, picked = torch.ones(20, 30), torch.ones(50, 8), torch.tensor([1, 2, 3])

    def run() -> None:
        x.sum(1)
        x.argmax(0)
        x.max(1)
        torch.nn.functional.embedding(picked, table)

    found = rows(tmp_path, run)
    total = next(r for r in found if r.name == "aten::sum" and r.flops)
    assert (total.flops, total.nbytes) == (600, 4 * (600 + 20))
    assert row(found, "aten::argmax").nbytes == 4 * 600 + 8 * 30
    assert row(found, "aten::max").nbytes == 4 * 600 + 20 * (4 + 8)
    assert row(found, "aten::index_select").nbytes == 2 * 4 * 3 * 8 + 8 * 3


@pytest.mark.parametrize("name", ["_flash_attention_forward", "_efficient_attention_forward"])
def test_attention_over_sequences_of_different_lengths_is_not_counted(name: str) -> None:
    """2048 tokens of four sequences; where each begins comes along."""
    dense = Signature(f"aten::{name}", ((4, 512, 16, 64),) * 3, ("bfloat16",) * 3, ("",) * 3)
    assert work(dense).flops == 4.0 * 4 * 16 * 512 * 512 * 64
    shapes, types = ((1, 2048, 16, 64),) * 3 + ((5,), (5,)), ("bfloat16",) * 3 + ("int32",) * 2
    assert "lengths" in work(Signature(f"aten::{name}", shapes, types, ("",) * 5)).why


MM = {
    "Input Dims": [[64, 64], [64, 64]],
    "Input Strides": [[64, 1], [64, 1]],
    "Input type": ["c10::BFloat16"] * 2,
    "Concrete Inputs": ["", ""],
}


def on_device(tmp_path: Path, *calls: tuple[str, dict[str, Any], str, float]) -> list[Operator]:
    """The operator table of a made-up trace.

    ``calls``: name of an operator, its arguments, its kernel and the kernel's microseconds.
    """
    events: list[dict[str, Any]] = [
        {"cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0.0, "dur": 100.0, "tid": 1}
    ]
    for number, (name, arguments, kernel, took_us) in enumerate(calls, 1):
        of = {"External id": number}
        at = {"ts": 10.0 * number, "tid": 1}
        events += [
            {"cat": "cpu_op", "name": name, "dur": 5.0, **at, "args": {**arguments, **of}},
            {"cat": "kernel", "name": kernel, "dur": took_us, **at, "tid": 7, "args": of},
        ]
    events = [{"ph": "X", **event} for event in events]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return list(operators(read_trace(tmp_path / "trace.json")))


@pytest.mark.parametrize(
    ("name", "seed", "type_of_seed", "shape"),
    [
        ("_flash_attention_backward", [2], "long unsigned int", [4, 512, 16, 64]),
        ("_cudnn_attention_backward", [], "long int", [4, 16, 512, 64]),
    ],
)
def test_attention_on_a_gpu_is_counted_beside_the_seed_of_its_dropout(
    tmp_path: Path, name: str, seed: list[int], type_of_seed: str, shape: list[int]
) -> None:
    """Flash attention keeps its seed in unsigned integers."""
    lse = [4, 16, 512]
    arguments = {
        "Input Dims": [*[shape] * 5, lse, [], [], [], [], [], [], seed, []],
        "Input Strides": [*[[1] * 4] * 5, [1] * 3, [], [], [], [], [], [], [1] * len(seed), []],
        "Input type": [*["c10::BFloat16"] * 5, "float", "", "", *["Scalar"] * 4]
        + [type_of_seed] * 2,
        "Concrete Inputs": [*[""] * 8, "512", "512", "0.", "True", "", ""],
    }
    table = on_device(tmp_path, (f"aten::{name}", arguments, "flash_bwd_kernel", 200.0))
    flops = 5 * 2.0 * 4 * 16 * 512 * 512 * 64
    assert row(tuple(table), f"aten::{name}").flops == model_flops(table, 1) == flops


def test_attention_over_sequences_of_unknown_lengths_leaves_the_model_uncounted() -> None:
    product = Operator("aten::mm", "", "", 1, 1e-3, 0.5, 1e-3, 1e-3, 1e-3, 1e-3, flops=1e9)
    unknown = replace(product, name="aten::_cudnn_attention_forward", flops=None)
    assert model_flops([product], 1) == 1e9 and model_flops([product, unknown], 1) is None


def test_products_in_a_replayed_graph_leave_the_model_uncounted(tmp_path: Path) -> None:
    """A CUDA graph is replayed without operators: only the kernels show what it computes."""
    head = ("aten::mm", MM, "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 20.0)

    def replayed(kernel: str) -> float | None:
        return model_flops(on_device(tmp_path, head, ("CompiledFunction", {}, kernel, 80.0)), 1)

    assert replayed("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64") is None
    assert replayed("triton_poi_fused_relu_0") == 2 * 64**3


def test_products_of_an_operators_own_beside_one_that_it_calls(tmp_path: Path) -> None:
    """Megatron's linear layer calls aten::mm, and launches another product by itself."""
    events = [
        ("user_annotation", "ProfilerStep#0", 0.0, 100.0, {}),
        ("cpu_op", "LinearBackward", 10.0, 50.0, {"External id": 1}),
        ("cpu_op", "aten::mm", 15.0, 5.0, {**MM, "External id": 2}),
        ("kernel", "nvjet_tst_64x8", 20.0, 30.0, {"External id": 2}),
        ("kernel", "wgrad_gemm_accum_fp32", 52.0, 30.0, {"External id": 1}),
    ]
    found = [
        {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, "args": args}
        | {"tid": 7 if kind == "kernel" else 1}
        for kind, name, ts, dur, args in events
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": found}))
    table = operators(read_trace(tmp_path / "trace.json"))
    assert row(table, "aten::mm").flops == 2 * 64**3
    [outer] = [each for each in table if each.name == "LinearBackward"]
    assert PRODUCTS_INSIDE in outer.why and model_flops(table, 1) is None
    assert judge(outer, None).bound != "overhead"
