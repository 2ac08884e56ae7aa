"""Every rule on constructed cases: it reports the right place and cost, stays silent below its
threshold, and says when it cannot judge.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import case, evidence, gpu_case, gpu_machine, job, operator, phases, place_data

from autotune.explain.records import Finding, Peak, Side
from autotune.findings import RULES, Case, NotJudgeable
from autotune.results import Anatomy
from autotune.verdict.timing import anatomy
from autotune_spaces.facts import ReaderFacts
from autotune_trials.protocol.evidence import Calls, Evidence, Frames, GraphBreak, Place, Transfer
from autotune_trials.protocol.messages import Window

LINE = Place("/home/me/train.py", 17, "step", "x = x * 1.01")
LIBRARY = Place("/site-packages/torch/nn/functional.py", 9, own=False)


def ask(name: str, about: Case) -> list[Finding]:
    return next(rule for rule in RULES if rule.name == name).judge(about)


def refusal(name: str, about: Case) -> str:
    with pytest.raises(NotJudgeable) as refused:
        ask(name, about)
    return str(refused.value)


def frames(seconds: float, phase: str, place: Place = LINE) -> tuple[Frames, ...]:
    return tuple(Frames(i, phase, place, seconds) for i in range(60))


# ---------------------------------------------------------------- page-faults


def parts(minor_faults: float, system_s: float, user_s: float = 0.06) -> Anatomy:
    window = Window(
        (0.03,) * 40,
        (64.0,) * 40,
        {},
        minor_faults=int(40 * minor_faults),
        user_s=40 * user_s,
        system_s=40 * system_s,
    )
    return anatomy(window, 10)


def test_memory_that_is_mapped_anew_in_every_step_is_told_with_its_share() -> None:
    (found,) = ask("page-faults", case(anatomy=parts(5000, 0.012)))
    assert "5,000 page faults per iteration" in found.evidence and "17%" in found.evidence
    assert found.cost_s == pytest.approx(0.03 / 6) and found.knob == "malloc"
    assert "MALLOC_TRIM_THRESHOLD_=2147483647" in found.advice
    (still,) = ask("page-faults", case(anatomy=parts(5000, 0.012), defaults={"malloc": "tcmalloc"}))
    assert "malloc=tcmalloc" in still.advice


@pytest.mark.parametrize(
    ("minor_faults", "system_s"),
    # none; few; cheap; most of the system time goes to something else
    [(0, 0.0), (300, 0.012), (1500, 0.002), (1000, 0.03)],
)
def test_a_few_page_faults_are_usual(minor_faults: float, system_s: float) -> None:
    assert ask("page-faults", case(anatomy=parts(minor_faults, system_s))) == []


def test_page_faults_that_nobody_counted_are_not_judged() -> None:
    assert "not counted" in refusal("page-faults", case()) and "not counted" in refusal(
        "page-faults", case(anatomy=parts(0, 0.0, 0.0))
    )
    assert "driver" in refusal("page-faults", gpu_case(anatomy=parts(5000, 0.012)))


# ---------------------------------------------------------------- loader-bound


def test_waiting_for_batches_is_found_at_the_loader_and_the_data_set() -> None:
    seen = evidence(
        phases(data=0.05), frames=frames(0.05, "data") + frames(0.09, "forward", LIBRARY)
    )
    (found,) = ask("loader-bound", case(seen=seen))
    assert found.cost_s == pytest.approx(0.05)
    assert (found.place.line, found.places, found.knob) == (41, (LINE,), "num_workers")
    assert "34%" in found.evidence and "train.py:17" in found.evidence


def test_only_lines_worth_naming_are_listed() -> None:
    cheap = Place("/home/me/train.py", 18)
    seen = evidence(phases(data=0.05), frames=frames(0.05, "data") + frames(0.004, "data", cheap))
    (found,) = ask("loader-bound", case(seen=seen))
    assert found.places == (LINE,)


def test_lines_of_libraries_do_not_crowd_out_those_of_the_job() -> None:
    libraries = tuple(f for n in range(3) for f in frames(0.02, "data", replace(LIBRARY, line=n)))
    seen = evidence(phases(data=0.05), frames=libraries + frames(0.01, "data"))
    (found,) = ask("loader-bound", case(seen=seen))
    assert found.places == (LINE,) and "train.py:17" in found.evidence


def streamed(workers: int, leaf: str = "", **loader: Any) -> Case:
    """A case that waits for batches of ``workers``, where the training thread is at ``leaf``."""
    waiting = tuple(Frames(i, "data", LINE, 0.04, leaf) for i in range(60))
    seen = evidence(
        phases(data=0.05), loader={"place": place_data(), "num_workers": workers}, frames=waiting
    )
    facts = job()
    return case(
        seen=seen,
        job=replace(
            facts, loader=replace(facts.loader, **loader), reader=ReaderFacts(0.4, cpu_s=0.39)
        ),
    )


def test_data_that_workers_would_not_split_have_to_be_split_first() -> None:
    (found,) = ask("loader-bound", streamed(0, iterable=True, worker_sharding=False))
    assert found.advice.startswith("First split the data") and found.knob == ""
    (found,) = ask("loader-bound", streamed(0, iterable=True))
    assert found.advice.startswith("Let worker processes") and found.knob == "num_workers"


@pytest.mark.parametrize(("workers", "more"), [(4, True), (8, False)])
def test_more_workers_than_cores_are_not_advised_where_they_compute(
    workers: int, more: bool
) -> None:
    (found,) = ask("loader-bound", streamed(workers))
    assert ("Use more workers" in found.advice) is more
    assert ("the 8 cores cannot help" in found.advice) is not more
    assert found.knob == ("num_workers" if more else "")
    waiting = replace(streamed(workers).job, reader=ReaderFacts(0.4, cpu_s=0.1))
    (found,) = ask("loader-bound", replace(streamed(workers), job=waiting))
    assert "Use more workers" in found.advice


@pytest.mark.parametrize(
    ("leaf", "tensors", "packed"),
    [
        ("multiprocessing.connection.SocketClient", 17, True),
        ("multiprocessing.connection.Connection._recv", 2, False),  # one large message
        ("selectors._PollLikeSelector.select", 17, False),  # nothing has arrived yet
    ],
)
def test_many_small_tensors_should_be_packed(leaf: str, tensors: int, packed: bool) -> None:
    (found,) = ask("loader-bound", streamed(4, leaf, batch_tensors=tensors))
    assert ("17 small tensors" in found.advice) is packed
    assert ("Use more workers" in found.advice) is not packed


def test_rounds_of_workers_are_waits_and_stragglers_are_not() -> None:
    rounds = phases(data=0.0)
    rounds["data"] = (0.16, 0.0, 0.0, 0.0) * 15
    (found,) = ask(
        "loader-bound",
        case(seen=evidence(rounds, loader={"place": place_data(), "num_workers": 4})),
    )
    assert found.cost_s == pytest.approx(0.04)
    late = phases(data=0.001)
    late["data"] = (0.001,) * 19 + (2.0,) + (0.001,) * 40
    assert ask("loader-bound", case(seen=evidence(late))) == []


@pytest.mark.parametrize(("wait_s", "fires"), [(0.010, False), (0.0125, True)])
def test_a_tenth_of_the_iteration_is_the_bar(wait_s: float, fires: bool) -> None:
    assert bool(ask("loader-bound", case(seen=evidence(phases(data=wait_s))))) is fires


def test_without_a_loader_there_is_nothing_to_judge() -> None:
    assert "no DataLoader" in refusal(
        "loader-bound", case(seen=evidence(loader={}), job=job(loader=None))
    )


def test_nothing_watched_nothing_judged() -> None:
    blind = Evidence(blind={"everything": "the job ended before its iterations could be observed"})
    for name in ("loader-bound", "launch-bound", "eager-optimizer"):
        assert (
            refusal(name, case(seen=blind))
            == "the job ended before its iterations could be observed"
        )


@pytest.mark.parametrize(
    ("rule", "unseen"),
    [
        ("graph-break", "graph breaks"),
        ("recompile", "compiles"),
        ("eager-optimizer", "settings"),
        ("transfer-not-overlapped", "copies"),
        ("array-copies", "copies"),
    ],
)
def test_what_was_not_watched_is_not_called_healthy(rule: str, unseen: str) -> None:
    assert (
        refusal(rule, gpu_case(seen=evidence(blind={unseen: "RuntimeError: no"})))
        == "RuntimeError: no"
    )


def decoding(share: float, wait_s: float = 0.05) -> Evidence:
    return evidence(
        phases(data=wait_s),
        loader={"place": place_data(), "num_workers": 16},
        fetching_s=10.0,
        decoding_s=10.0 * share,
    )


def test_jpeg_that_workers_decode_while_the_gpu_waits() -> None:
    (found,) = ask("gpu-decoding", gpu_case(seen=decoding(0.6)))
    assert "60% of the time in which 16 workers" in found.evidence and "(34%)" in found.evidence
    assert found.cost_s is None and found.place.line == 41
    assert ask("gpu-decoding", gpu_case(seen=decoding(0.3))) == [], (
        "there is more to fetching than decoding"
    )
    assert ask("gpu-decoding", gpu_case(seen=decoding(0.6, wait_s=0.001))) == [], "nobody waits"
    assert "CPU" in refusal("gpu-decoding", case(seen=decoding(0.6)))
    assert "no worker" in refusal("gpu-decoding", gpu_case())


# ---------------------------------------------------------------- launch-bound, host-bound


def tiny_side(
    calls: int = 24_000, share: float = 0.9, bound: str = "", mean_s: float = 4e-6
) -> Side:
    rows = (
        operator("aten::mul", calls * mean_s, share, calls, bound=bound),
        operator("aten::mm", 1e-2, 1 - share, 24, bound="compute"),
    )
    return Side(profiled_steps=12, operators=rows)


def test_thousands_of_tiny_operators_are_found_where_they_are_called() -> None:
    seen = evidence(frames=frames(0.05, "forward") + frames(0.09, "forward", LIBRARY))
    (found,) = ask("launch-bound", case(seen=seen, side=tiny_side(mean_s=5e-5, bound="overhead")))
    assert found.cost_s == pytest.approx(0.0986, rel=0.01), (
        "1.2 s in twelve iterations, cut to what the watched ones computed"
    )
    assert found.place == LINE
    assert "2,000 tiny operators" in found.evidence and "aten::mul" in found.evidence


def test_what_the_profiler_adds_to_a_call_is_no_cost_of_the_job() -> None:
    rows = (
        operator("aten::mul", 0.6, 0.75, 24_000, bound="overhead"),
        operator("aten::mm", 0.2, 0.25, 24_000, bound="memory"),
    )
    seen = evidence(phases(forward=0.03, backward=0.01, optimizer=0.0, other=0.0))
    (found,) = ask("launch-bound", case(seen=seen, side=Side(profiled_steps=12, operators=rows)))
    profiled, computed = 0.8 / 12, 0.04
    assert found.cost_s == pytest.approx(0.6 / 12 - (profiled - computed) / 2)


@pytest.mark.parametrize(
    "side",
    [
        tiny_side(calls=6_000),
        tiny_side(mean_s=5e-7),
        tiny_side(mean_s=2e-5),
        tiny_side(bound="memory"),
    ],
)
def test_few_cheap_or_large_operators_are_no_finding(side: Side) -> None:
    assert ask("launch-bound", case(side=side)) == []


def test_the_rooflines_verdict_goes_before_the_mean() -> None:
    assert ask("launch-bound", case(side=tiny_side(mean_s=2e-5, bound="overhead")))


def test_many_small_kernels_leave_the_device_idle() -> None:
    side = Side(profiled_steps=12, kernels_per_step=5000.0, idle_share=0.6)
    (found,) = ask("launch-bound", gpu_case(side=side))
    assert found.cost_s == pytest.approx(0.06 - 0.001)
    assert ask("launch-bound", gpu_case(side=replace(side, kernels_per_step=500.0))) == []
    assert "no kernels" in refusal("launch-bound", gpu_case())


def test_waiting_for_batches_is_not_waiting_for_launches() -> None:
    seen = evidence(phases(data=0.05, forward=0.02, backward=0.02, optimizer=0.008, other=0.002))
    side = Side(profiled_steps=12, kernels_per_step=5000.0, idle_share=0.55)
    assert ask("launch-bound", gpu_case(seen=seen, side=side)) == []


def test_what_an_evaluation_does_costs_no_iteration() -> None:
    readout = Calls("item", LINE, 60, 60 * 3e-4, tuple(range(60)), "float32[]", "cpu")
    readout = replace(readout, phase="other", each_s=(3e-4,) * 60, lines=(17, 17))
    evaluation = replace(
        readout, count=4000, seconds=1.2, iterations=(30,), phase="away", each_s=(1.2,)
    )
    assert ask("tensor-readout", case(seen=evidence(calls=(readout, evaluation)))) == []
    away = Frames(30, "away", replace(LINE, line=99), 30.0)
    seen = evidence(frames=(*frames(0.02, "other"), away))
    (found,) = ask("host-bound", gpu_case(seen=seen, side=Side(idle_share=0.3)))
    assert found.place == LINE and ":99" not in found.evidence


def test_blank_time_names_the_frames() -> None:
    seen = evidence(frames=frames(0.02, "other") + frames(0.09, "forward", LIBRARY))
    (found,) = ask("host-bound", gpu_case(seen=seen, side=Side(idle_share=0.3)))
    assert found.cost_s == pytest.approx(0.03)
    assert found.place == LINE and "train.py:17 (20.0 ms an iteration)" in found.evidence
    assert ask("host-bound", gpu_case(side=Side(idle_share=0.1))) == []
    assert "host and device are the same" in refusal("host-bound", case())
    assert "does not show" in refusal("host-bound", gpu_case())


# ---------------------------------------------------------------- transfers


def moved(**changes: Any) -> tuple[Transfer, ...]:
    return (
        Transfer(**{"place": LINE, "nbytes": 60 * 38_000_000, "seconds": 60 * 0.012, **changes}),
    )


def test_blocking_copies_cost_what_the_stream_copies() -> None:
    (found,) = ask(
        "transfer-not-overlapped",
        gpu_case(seen=evidence(phases(to_device=0.01), transfers=moved())),
    )
    assert found.cost_s == pytest.approx(0.01)
    assert (found.place, found.knob) == (LINE, "pin_memory")
    (found,) = ask(
        "transfer-not-overlapped",
        gpu_case(seen=evidence(phases(to_device=0.01), transfers=moved(pinned=True))),
    )
    assert found.knob == "non_blocking"


def test_overlapped_and_short_copies_are_no_finding() -> None:
    for seen in (moved(pinned=True, non_blocking=True), moved(seconds=0.01), ()):
        assert (
            ask(
                "transfer-not-overlapped",
                gpu_case(seen=evidence(phases(to_device=0.01), transfers=seen)),
            )
            == []
        )
    assert "nothing is copied to a device" in refusal("transfer-not-overlapped", case())


# ---------------------------------------------------------------- precision


CAST = Calls("cast", LINE, 60, 0.0, detail="softmax of bfloat16[256, 1024]", nbytes=10**9)


def cast_side(share: float) -> Side:
    rows = (
        operator(
            "aten::copy_",
            0.1,
            share,
            shapes="[256, 1024] [256, 1024]",
            dtypes="float c10::BFloat16",
        ),
        operator("aten::copy_", 0.1, 0.2, shapes="[64, 64] [64, 64]", dtypes="float c10::BFloat16"),
    )
    return Side(config={"amp_dtype": "bfloat16"}, profiled_steps=12, operators=rows)


def test_casts_cost_the_copies_of_their_own_shape() -> None:
    (found,) = ask("casts", case(seen=evidence(calls=(CAST,)), side=cast_side(0.3)))
    assert found.cost_s == pytest.approx(0.3 * 0.099)
    assert found.place == LINE and "softmax of bfloat16[256, 1024]" in found.evidence


def test_no_half_precision_no_casts() -> None:
    assert (
        ask("casts", case(seen=evidence(calls=(CAST,)), side=replace(cast_side(0.3), config={})))
        == []
    )
    assert ask("casts", case(seen=evidence(calls=(CAST,)), side=cast_side(0.02))) == []
    assert ask("casts", case(side=cast_side(0.3))) == [], (
        "copies without such an operator are autocast's own"
    )


def product(
    dtypes: str = "float32 float32", shapes: str = "[512, 1024] [1024, 512]", **changes: Any
) -> Side:
    row = operator("aten::mm", 0.5, 0.5, shapes=shapes, dtypes=dtypes, **changes)
    return Side(profiled_steps=12, operators=(row,), idle_share=0.0)


def convolution(shapes: str, dtypes: str = "float32 float32", **changes: Any) -> Side:
    row = operator("aten::cudnn_convolution", 0.5, 0.5, shapes=shapes, dtypes=dtypes, **changes)
    return Side(profiled_steps=12, operators=(row,), idle_share=0.0)


PEAKS = (Peak("float32", 50e12), Peak("tf32", 400e12), Peak("bfloat16", 800e12))


def test_float32_products_beside_tensor_cores() -> None:
    (found,) = ask("no-tensor-cores", gpu_case(side=product(), peaks=PEAKS))
    assert found.cost_s == pytest.approx(0.5 * 0.1 * (1 - 1 / 16))
    assert found.knob == "amp_dtype" and "they would take 3.13 ms" in found.evidence
    (found,) = ask("no-tensor-cores", gpu_case(side=product()))
    assert found.cost_s is None and "was not measured" in found.evidence
    for name in (
        "ampere_sgemm_128x64_nn",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_aligna4_execute_kernel__5x_cublas",
        "cutlass_80_simt_sgemm_128x64_8x5_nt_align1",
    ):
        assert ask("no-tensor-cores", gpu_case(side=product(kernels=(name,)), peaks=PEAKS))


@pytest.mark.parametrize(
    "about",
    [
        gpu_case(side=product("bfloat16 bfloat16"), peaks=PEAKS),
        gpu_case(side=product(kernels=("sm90_xmma_gemm_f32f32_tf32f32",)), peaks=PEAKS),
        gpu_case(side=product(), job=job(device="cuda", matmul_precision="high"), peaks=PEAKS),
        gpu_case(side=replace(product(), config={"matmul_precision": "medium"}), peaks=PEAKS),
        gpu_case(side=product(shapes="[4, 8] [8, 2]"), peaks=PEAKS),
    ],
)
def test_products_on_tensor_cores_or_too_small_are_no_finding(about: Case) -> None:
    assert ask("no-tensor-cores", about) == []


@pytest.mark.parametrize(
    "side",
    [
        product("float64 float64", kernels=("volta_dgemm_64x64_nn",)),
        product("bfloat16 bfloat16", kernels=("conv_depthwise2d_backward_kernel<c10::BFloat16>",)),
        # one channel in a kernel: depthwise
        convolution("[64, 96, 56, 56] [96, 1, 7, 7]", kernels=("conv_depthwise2d_kernel<float>",)),
    ],
)
def test_products_that_tensor_cores_cannot_speed_up_are_no_finding(side: Side) -> None:
    assert ask("no-tensor-cores", gpu_case(side=side, peaks=PEAKS)) == []


def test_a_product_that_waits_for_memory_gains_what_16_bits_save() -> None:
    rows, size = 65536, 16
    work = {"flops": 2.0 * rows * size**2, "nbytes": 4.0 * (2 * rows * size + size**2)}
    side = product(shapes="[65536, 16] [16, 16]", **work)
    (found,) = ask("no-tensor-cores", gpu_case(side=side, peaks=(*PEAKS, Peak("memory", 3e12))))
    assert found.cost_s == pytest.approx(0.5 * 0.1 * 0.5)


def test_no_tensor_cores_no_judgement() -> None:
    assert "CPU" in refusal("no-tensor-cores", case())
    assert "has no Tensor cores" in refusal(
        "no-tensor-cores", gpu_case(machine=gpu_machine(compute_capability=(6, 1)))
    )


def test_odd_dimensions_under_half_precision() -> None:
    half = {"amp_dtype": "bfloat16"}
    odd = replace(product("bfloat16 bfloat16", "[512, 1021] [1021, 50257]"), config=half)
    (found,) = ask("odd-dimensions", gpu_case(side=odd))
    assert found.cost_s is None and "(1021, 50257)" in found.evidence
    assert ask("odd-dimensions", gpu_case(side=replace(product(), config=half))) == []
    assert "float32" in refusal(
        "odd-dimensions", gpu_case(side=product(shapes="[512, 1021] [1021, 50257]"))
    )
    assert "CPU" in refusal("odd-dimensions", case(side=odd))
    in_float32 = replace(product(shapes="[512, 1021] [1021, 50257]"), config=half)
    assert ask("odd-dimensions", gpu_case(side=in_float32)) == []


@pytest.mark.parametrize(
    ("shapes", "odd"),
    [
        ("[4, 64, 56, 56] [64, 64, 3, 3]", False),  # a batch of 4
        ("[100, 64, 56, 56] [100, 64, 56, 56] [64, 64, 3, 3]", False),
        ("[64, 96, 56, 56] [64, 96, 56, 56] [96, 1, 7, 7]", False),  # depthwise
        ("[64, 61, 56, 56] [64, 61, 3, 3]", True),
        ("[64, 61, 56, 56] [64, 64, 56, 56] [61, 64, 3, 3]", True),
    ],
)
def test_of_a_convolution_only_its_channels_may_be_odd(shapes: str, odd: bool) -> None:
    side = replace(convolution(shapes, "bfloat16 bfloat16"), config={"amp_dtype": "bfloat16"})
    assert bool(ask("odd-dimensions", gpu_case(side=side))) is odd


def wide(shapes: str = "[16384, 4096] [4096, 4096]", config: dict[str, Any] | None = None) -> Side:
    return replace(
        product("bfloat16 bfloat16", shapes),
        config={"amp_dtype": "bfloat16"} if config is None else config,
    )


def test_products_that_float8_would_speed_up() -> None:
    (found,) = ask("float8", gpu_case(side=wide()))
    assert found.cost_s is None and "(50%)" in found.evidence and "torchao" in found.advice
    with_bias = wide("[4096] [16384, 4096] [4096, 4096]")
    assert ask("float8", gpu_case(side=with_bias))


@pytest.mark.parametrize(
    "about",
    [
        # no wider than products that reportedly gain nothing
        gpu_case(side=wide("[16384, 1600] [1600, 6400]")),
        gpu_case(side=wide("[64, 4096, 4096] [64, 4096, 4096]")),  # inside attention
        gpu_case(side=replace(wide(), idle_share=0.3)),  # 35% of an iteration
    ],
)
def test_products_too_small_or_too_few_for_float8(about: Case) -> None:
    assert ask("float8", about) == []


def test_float8_is_for_hopper_and_comes_after_16_bits() -> None:
    assert "CPU" in refusal("float8", case(side=wide()))
    assert "older than Hopper" in refusal(
        "float8", gpu_case(side=wide(), machine=gpu_machine(compute_capability=(8, 0)))
    )
    assert "try bfloat16 first" in refusal("float8", gpu_case(side=wide(config={})))


def test_padding_is_told_from_the_masks_of_the_batches() -> None:
    (found,) = ask("padding", case(seen=evidence(padding=(3_000, 10_000))))
    assert "3,000 of 10,000" in found.evidence and "(30%)" in found.evidence
    assert found.cost_s is None and found.place.line == 41
    assert ask("padding", case(seen=evidence(padding=(2_400, 10_000)))) == []
    assert "attention_mask" in refusal("padding", case())


# ---------------------------------------------------------------- compiling


def test_graph_breaks_have_dynamos_reason_and_place() -> None:
    breaks = (
        GraphBreak("break", "call to print", LINE, 1),
        GraphBreak("break", "data-dependent", LIBRARY, 1),
    )
    standing = tuple(
        replace(f, leaf=leaf)
        for f in frames(0.01, "forward")
        for leaf in ("train.step", "torch._dynamo.eval_frame.fn")
    )
    measured, unmeasured = ask("graph-break", case(seen=evidence(breaks=breaks, frames=standing)))
    assert measured.cost_s == pytest.approx(0.01), "without what torch did in it"
    assert measured.place == LINE and "call to print" in measured.evidence
    assert unmeasured.cost_s is None and "cannot be measured" in unmeasured.evidence
    assert ask("graph-break", case()) == []


def test_recompiles_cost_the_seconds_of_compiling() -> None:
    again = GraphBreak(
        "recompile", "tensor 'x' size mismatch at index 0. expected 64, actual 65", LINE, 5, 3.0
    )
    (found,) = ask("recompile", case(seen=evidence(breaks=(again,))))
    assert found.cost_s == pytest.approx(0.05)
    assert (
        found.place == LINE
        and "5 times in 60 iterations" in found.evidence
        and "size mismatch" in found.evidence
    )
    (gave_up,) = ask(
        "recompile", case(seen=evidence(breaks=(replace(again, count=8, seconds=0.0),)))
    )
    assert gave_up.cost_s is None and "then gave up" in gave_up.evidence
    assert ask("recompile", case()) == []
    once = replace(again, count=1)  # a size that changes, or the first evaluation
    assert ask("recompile", case(seen=evidence(breaks=(once,)))) == []
    elsewhere = replace(once, place=replace(LINE, line=99))
    assert len(ask("recompile", case(seen=evidence(breaks=(once, elsewhere))))) == 2


# ---------------------------------------------------------------- optimizer


def optimizer(**changes: Any) -> tuple[dict[str, Any], ...]:
    return (
        {
            "class": "AdamW",
            "tensors": 400,
            "own_s": 0.02,
            "best_s": 0.005,
            "best": "fused",
            "place": place_data(30),
            **changes,
        },
    )


def test_a_loop_over_parameters_costs_what_gathering_saves() -> None:
    (found,) = ask(
        "eager-optimizer", case(seen=evidence(phases(optimizer=0.024), optimizers=optimizer()))
    )
    assert found.cost_s == pytest.approx(0.024 * 0.75), (
        "of the phase as it was watched, not as it was tried"
    )
    assert (found.place.line, found.knob) == (30, "optimizer_impl")


def test_an_optimizer_costs_what_it_took_when_nothing_watched() -> None:
    timed = Window((0.05,) * 40, (64.0,) * 40, {"optimizer": 40 * 0.012})
    (found,) = ask(
        "eager-optimizer",
        case(
            seen=evidence(phases(optimizer=0.024), optimizers=optimizer()),
            anatomy=anatomy(timed, 10),
        ),
    )
    assert found.cost_s == pytest.approx(0.012 * 0.75)
    assert found.share == pytest.approx(0.012 * 0.75 / 0.05)
    assert "12.0 ms of each 50.0 ms" in found.evidence


@pytest.mark.parametrize("changes", [{"tensors": 12}, {"best_s": 0.016}])
def test_few_parameters_or_little_to_gain(changes: dict[str, Any]) -> None:
    assert (
        ask(
            "eager-optimizer",
            case(seen=evidence(phases(optimizer=0.024), optimizers=optimizer(**changes))),
        )
        == []
    )
    assert (
        ask("eager-optimizer", case(seen=evidence(phases(optimizer=0.004), optimizers=optimizer())))
        == []
    )


def test_an_optimizer_that_could_not_be_tried() -> None:
    told = (
        {
            "class": "Mine",
            "tensors": 400,
            "untried": "not enough free memory to copy its parameters",
        },
    )
    assert "not enough free memory" in refusal(
        "eager-optimizer", case(seen=evidence(optimizers=told))
    )


# ---------------------------------------------------------------- the ranks


def test_ranks_that_wait() -> None:
    calls = (Calls("collective", LINE, 60, 1.2, detail="all_reduce"),)
    seen = evidence(world_size=2, communication_s=(0.02,) * 60, calls=calls)
    (found,) = ask("communication", case(seen=seen))
    assert found.cost_s == pytest.approx(0.02)
    assert found.place == LINE and "all_reduce at train.py:17" in found.evidence
    assert (
        ask("communication", case(seen=evidence(world_size=2, communication_s=(0.009,) * 60))) == []
    )
    assert "one process" in refusal("communication", case())
    assert "watched" in refusal("communication", case(seen=evidence(world_size=2)))


def test_nccl_is_told_from_its_kernels_without_a_cost() -> None:
    row = operator(
        "nccl:all_reduce",
        0.3,
        0.3,
        self_device_s=0.3,
        kernels=("ncclDevKernel_AllReduce_Sum_f32_RING_LL",),
    )
    two = evidence(world_size=2)
    (found,) = ask(
        "communication", gpu_case(seen=two, side=Side(profiled_steps=12, operators=(row,)))
    )
    assert found.cost_s is None and "25.0 ms" in found.evidence and "bucket_cap_mb" in found.advice
    sharded = job(device="cuda", sharded=True)
    side = Side(profiled_steps=12, operators=(row,))
    (found,) = ask("communication", gpu_case(seen=two, side=side, job=sharded))
    assert "reshard_after_forward" in found.advice and "bucket_cap_mb" not in found.advice
    assert (
        ask("communication", gpu_case(seen=two, side=Side(profiled_steps=60, operators=(row,))))
        == []
    )
    assert "no profile" in refusal("communication", gpu_case(seen=two))
