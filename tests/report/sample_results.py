"""Realistic results for the tests of the report, without running anything."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.explain.records import BuildUp, Explanation, Finding, NotJudged, Operator, Side, Span
from autotune.results import (
    Anatomy,
    Confirmation,
    Interval,
    KnobGain,
    LossVerdict,
    Observation,
    Rejected,
    Result,
    Trial,
)
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine, ModelFacts, OptimizerFacts
from autotune_trials.protocol.evidence import Place

HOSTILE = (
    "<script>alert('x')</script> [bold red]é漢字[/bold red] \x1b[31mred\x1b[0m\nsecond line \u202e"
    " $x_{1$ {{ 2**31 }} \udc80"
)


def machine() -> Machine:
    return Machine(
        cores=2,
        memory_gib=7.8,
        shm_gib=3.9,
        device="cpu",
        device_name="AMD EPYC 9R14",
        torch_version="2.13.0+cpu",
        python_version="3.11.2",
        cpu_model="AMD EPYC 9R14",
        cpu_flags=frozenset({"avx512_bf16"}),
        cxx_compiler="g++",
    )


def job() -> JobFacts:
    loader = LoaderFacts(
        dataset="Digits",
        site="train.py:41",
        key="train.py:41#0",
        batch_size=64,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory=False,
        drop_last=False,
        iterable=False,
        length=23,
        samples=1437,
        custom_batch_sampler=False,
    )
    return JobFacts(
        pid=4711,
        device="cpu",
        loader=loader,
        optimizers=(
            OptimizerFacts("AdamW", "default", ("for-loop", "foreach", "fused"), (1e-3,), 95_000),
        ),
        models=(ModelFacts("Net", 95_000, 3, 1, 2),),
        intra_op_threads=2,
        samples_per_step=64.0,
    )


def anatomy(
    data_ms: float,
    forward_ms: float,
    backward_ms: float,
    optimizer_ms: float = 2.1,
    other_ms: float = 0.6,
) -> Anatomy:
    phases = {
        "data": data_ms / 1e3,
        "to_device": 0.0,
        "forward": forward_ms / 1e3,
        "backward": backward_ms / 1e3,
        "optimizer": optimizer_ms / 1e3,
        "other": other_ms / 1e3,
    }
    iteration_s = sum(phases.values())
    return Anatomy(
        phases_s=phases,
        iteration_s=iteration_s,
        median_s=iteration_s * 0.98,
        min_s=iteration_s * 0.9,
        max_s=iteration_s * 1.6,
        samples_per_s=64 / iteration_s,
        reader_cost_s=phases["data"],
        batch_cost_s=iteration_s,
        reader_ratio=phases["data"] / iteration_s,
        iterations=96,
        left_out=12,
        turnover_s=0.04,
        peak_memory_gib=0.61,
    )


def observation(noise: float = 0.012) -> Observation:
    return Observation(
        machine=machine(),
        job=job(),
        anatomy=anatomy(58.0, 14.2, 23.9),
        noise=noise,
        ceiling=2.36,
        bottleneck="loader",
        bottleneck_why=(
            "59% of an iteration is spent waiting for a batch (58 of 99 ms), and no worker process"
            " reads ahead."
        ),
        domains={
            "num_workers": (0, 1, 2),
            "amp_dtype": ("off", "bfloat16"),
            "compile_mode": ("off", "default"),
            "prefetch_factor": (2, 4, 8),
            "channels_last": (False, True),
        },
        defaults={
            "num_workers": 0,
            "amp_dtype": "off",
            "compile_mode": "off",
            "prefetch_factor": 2,
            "channels_last": False,
        },
        withdrawn={
            "pin_memory": "needs a CUDA device",
            "cudnn_benchmark": "needs a CUDA device",
            "non_blocking": "needs a CUDA device",
            "batch_size": "not in the preset auto: it changes the training trajectory",
        },
        startup_s=2.9,
    )


def trials() -> tuple[Trial, ...]:
    def done(
        number: int,
        config: dict,
        speedup: float,
        error: float = 0.015,
        state: str = "complete",
        **more: object,
    ) -> Trial:
        return Trial(number, config, state, -math.log(speedup), error, 4, **more)

    return (
        done(
            0,
            {"num_workers": 2},
            1.62,
            origin="seed",
            wall_s=5.1,
            anatomy=anatomy(20.0, 14.4, 24.3),
        ),
        done(1, {"num_workers": 1}, 1.41, 0.02, origin="seed", wall_s=5.6),
        done(2, {"amp_dtype": "bfloat16"}, 1.18, 0.02, origin="seed", wall_s=5.9),
        done(
            3,
            {"channels_last": True},
            0.97,
            0.03,
            "pruned",
            origin="seed",
            reason="slower than the baseline in the first pairs",
        ),
        Trial(
            4,
            {"compile_mode": "default"},
            "failed",
            reason="BackendCompilerFailed: no C++ compiler",
            origin="seed",
            wall_s=14.0,
        ),
        done(
            5, {"num_workers": 2, "amp_dtype": "bfloat16"}, 2.08, 0.02, origin="sampler", wall_s=6.0
        ),
        Trial(
            6,
            {"num_workers": 2, "prefetch_factor": 8},
            "infeasible",
            reason="oom: host memory over 16 GiB",
            origin="sampler",
        ),
        done(
            7,
            {"num_workers": 2, "amp_dtype": "bfloat16", "prefetch_factor": 4},
            2.11,
            0.03,
            origin="sampler",
            wall_s=6.2,
            no_effect={"prefetch_factor": "the queue never ran empty"},
        ),
        done(
            8,
            {"num_workers": 1, "amp_dtype": "bfloat16", "channels_last": True},
            1.66,
            0.04,
            origin="sampler",
            wall_s=6.3,
        ),
    )


def loss_unchanged() -> LossVerdict:
    baseline = {
        64 * n: 2.31 * math.exp(-n / 90) + 0.08 + 0.02 * math.sin(n) for n in range(0, 240, 4)
    }
    candidate = {at: loss + 0.004 * math.sin(at / 900) for at, loss in baseline.items()}
    return LossVerdict(
        "unchanged",
        "rounding only, the interval lies inside the margin in all 6 bins",
        3,
        240,
        0.0123,
        0.0041,
        "rounding",
        baseline,
        candidate,
    )


def environment() -> dict:
    return {
        "command": "python train.py --epochs 5",
        "cores": 2,
        "cpu": "AMD EPYC 9R14",
        "torch": "2.13.0+cpu",
        "python": "3.11.2",
        "platform": "Linux-6.1",
        "packages": {"numpy": "2.4.0", "optuna": "5.0.0"},
        "job_file": "/home/me/digits/job.yaml",
        "workdir": "/home/me/digits",
        "seed": 0,
        "planned_steps": 20_000,
    }


def tuned() -> Result:
    config = {"num_workers": 2, "amp_dtype": "bfloat16"}
    return Result(
        name="digits-cnn",
        verdict="tuned",
        reason="the whole interval lies above 1.02 and the loss is unchanged",
        speedup=Interval(2.10, 1.93, 2.29),
        loss=loss_unchanged(),
        knobs=config,
        baseline=observation().defaults,
        observation=observation(),
        confirmation=Confirmation(
            config,
            Interval(2.10, 1.93, 2.29),
            5,
            True,
            "the whole interval lies above 1.02",
            anatomy(57.1, 14.0, 23.5),
            anatomy(17.6, 9.1, 17.4),
        ),
        gains=(
            KnobGain("num_workers", 2, Interval(1.71, 1.60, 1.83), True),
            KnobGain(
                "amp_dtype",
                "bfloat16",
                Interval(1.24, 1.17, 1.31),
                True,
                start_up_s=0.4,
                break_even_steps=22,
            ),
            KnobGain(
                "prefetch_factor",
                4,
                Interval(1.00, 0.97, 1.03),
                False,
                "nothing is lost without it",
            ),
        ),
        rejected=(
            Rejected(
                {"num_workers": 2, "amp_dtype": "bfloat16", "prefetch_factor": 4},
                "prefetch_factor gives nothing by itself: the smaller change wins",
            ),
            Rejected(
                {"num_workers": 1, "amp_dtype": "bfloat16", "channels_last": True},
                "slower than the winner in fresh processes",
            ),
        ),
        trials=trials(),
        wall_s=372.0,
        environment=environment(),
        explanation=explanation(),
    )


def operator(name: str, self_time_s: float, share: float, calls: int) -> Operator:
    mean_s = self_time_s / calls
    return Operator(
        name, name, name, calls, self_time_s, share, self_time_s, mean_s, 0.9 * mean_s, 1.2 * mean_s
    )


def explanation() -> Explanation:
    before = (
        ("aten::convolution_backward", 31e-3, 36),
        ("aten::mkldnn_convolution", 22.0005e-3, 36),
        ("aten::addmm", 9e-3, 24),
    )
    return Explanation(
        sides={
            "baseline": Side(
                trace="traces/baseline.json.gz",
                operators=tuple(operator(n, s, s / 96e-3, calls) for n, s, calls in before),
                timeline=timeline(57.1, 14.0, 23.5),
            ),
            "winner": Side(
                trace="traces/winner.json.gz",
                operators=(operator("aten::convolution_backward", 14e-3, 0.31, 36),),
                timeline=timeline(17.6, 9.1, 17.4),
            ),
        },
        findings=findings(),
        rules=17,
        not_judged=(
            NotJudged(
                "host-bound",
                "The device sits idle",
                "the job computes on the CPU: host and device are one",
            ),
        ),
        build_up=(
            BuildUp("num_workers", 2, 1.66, 1.58, 1.74),
            BuildUp("amp_dtype", "bfloat16", 2.10, 1.93, 2.29, "confirmed"),
        ),
        importance={
            "num_workers": 0.71,
            "amp_dtype": 0.22,
            "channels_last": 0.05,
            "prefetch_factor": 0.02,
        },
        wall_s=41.0,
    )


def findings() -> tuple[Finding, ...]:
    return (
        Finding(
            "loader-bound",
            "Waiting for batches",
            "baseline",
            "58.0 ms of an iteration's 97.3 ms (60%) are spent waiting for the next batch.",
            "Let worker processes prepare batches.",
            0.058,
            Place("/home/me/digits/train.py", 41, "main", "loader = DataLoader(data)"),
            knob="num_workers",
            cured=True,
            how_cured="by num_workers=2",
            share=0.6,
        ),
        Finding(
            "device-sync",
            "The host waits for the device",
            "baseline",
            "loss.item() in every iteration.",
            "Keep the loss on the device.",
            0.0042,
            Place("/home/me/digits/train.py", 77, "main", "total += loss.item()"),
            cost_after_s=0.0040,
            share=0.04,
        ),
    )


def timeline(data_ms: float, forward_ms: float, backward_ms: float) -> tuple[Span, ...]:
    """Three iterations: the phases, and below them the operators of both passes."""
    spans, at_s = [], 0.0
    for _ in range(3):
        for phase, length_s in (
            ("data", data_ms / 1e3),
            ("forward", forward_ms / 1e3),
            ("backward", backward_ms / 1e3),
            ("optimizer", 2.1e-3),
        ):
            spans.append(Span(phase, phase, at_s, length_s))
            names = {
                "forward": ("aten::mkldnn_convolution", "aten::relu", "aten::addmm"),
                "backward": ("aten::convolution_backward", "aten::mm"),
                "data": ("aten::stack",),
                "optimizer": ("aten::_fused_adamw_",),
            }[phase]
            busy_s = 0.06 * length_s if phase == "data" else 0.94 * length_s
            for k in range(12):
                spans.append(
                    Span(
                        "operators",
                        names[k % len(names)],
                        at_s + length_s - busy_s + k * busy_s / 12,
                        0.85 * busy_s / 12,
                    )
                )
            at_s += length_s
    return tuple(spans)


def keep() -> Result:
    return replace(
        tuned(),
        verdict="keep-baseline",
        reason="no configuration was faster by 2% or more in fresh processes",
        speedup=Interval(1.0, 1.0, 1.0),
        loss=LossVerdict("not-needed", "", 0, 0),
        knobs={},
        confirmation=Confirmation(
            {"num_workers": 1},
            Interval(1.01, 0.98, 1.04),
            5,
            False,
            "the interval reaches below 1.02",
            anatomy(57.1, 14.0, 23.5),
            anatomy(56.0, 14.0, 23.4),
        ),
        gains=(),
        rejected=(
            Rejected({"num_workers": 1}, "1.01× (0.98–1.04) in fresh processes: not above 1.02"),
        ),
        explanation=Explanation(),
    )


def undecided() -> Result:
    config = {"amp_dtype": "bfloat16"}
    loss = replace(
        loss_unchanged(),
        verdict="undecided",
        reason="the interval of bin 5 reaches over the margin after 8 pairs",
        pairs=8,
        steps=480,
        largest_difference=0.0151,
    )
    return replace(
        keep(),
        reason="1.24× faster, but the loss check could not tell whether the loss is unchanged",
        loss=loss,
        confirmation=Confirmation(
            config, Interval(1.24, 1.18, 1.30), 5, True, "the whole interval lies above 1.02"
        ),
        rejected=(Rejected(config, "loss undecided after 8 pairs of 480 steps"),),
    )


def nothing_tried() -> Result:
    bare = replace(observation(0.11), ceiling=None, domains={}, defaults={}, bottleneck_why="")
    return replace(
        keep(),
        name="no-knobs",
        reason="every knob is withdrawn for this job",
        observation=bare,
        confirmation=None,
        rejected=(),
        trials=(),
        speedup=Interval(1.0, math.nan, math.nan),
        wall_s=41.0,
        baseline={},
    )


def hostile() -> Result:
    base = tuned()
    config = {"opt:" + HOSTILE: HOSTILE, "num_workers": 2}
    return replace(
        base,
        name=HOSTILE,
        reason=HOSTILE,
        knobs=config,
        baseline={"opt:" + HOSTILE: HOSTILE},
        loss=replace(
            base.loss,
            reason=HOSTILE,
            candidate_curve=base.loss.candidate_curve | {15360: math.nan, 15424: math.inf},
        ),
        observation=replace(
            base.observation,
            bottleneck_why=HOSTILE,
            withdrawn={HOSTILE: HOSTILE},
            anatomy=replace(base.observation.anatomy, phases_s={HOSTILE: 0.1}),
        ),
        confirmation=replace(base.confirmation, config=config, reason=HOSTILE),
        gains=(
            KnobGain("opt:" + HOSTILE, HOSTILE, None, True, HOSTILE),
            KnobGain(HOSTILE, HOSTILE, None, False, HOSTILE),
        ),
        rejected=(Rejected(config, HOSTILE),) * 6,
        trials=(
            replace(base.trials[0], config=config, reason=HOSTILE),
            replace(base.trials[4], reason=HOSTILE, config=config, no_effect={HOSTILE: HOSTILE}),
        ),
        environment={HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}, "odd": object()},
        explanation=Explanation(
            sides={HOSTILE: Side(trace=HOSTILE, operators=(operator(HOSTILE, 3e-6, 1.0, 1),))},
            rules=3,
            not_judged=(NotJudged(HOSTILE, HOSTILE, HOSTILE),),
            findings=tuple(
                Finding(
                    HOSTILE,
                    HOSTILE,
                    HOSTILE,
                    HOSTILE,
                    HOSTILE,
                    math.nan,
                    place,
                    (place,) * 9,
                    HOSTILE,
                    cured,
                    HOSTILE,
                    math.inf,
                    math.nan,
                )
                for place, cured in (
                    (Place(HOSTILE, 3, HOSTILE, HOSTILE, False), False),
                    (Place("", -1), True),
                )
            ),
        ),
    )


def samples() -> dict[str, Result]:
    return {
        "tuned": tuned(),
        "keep": keep(),
        "undecided": undecided(),
        "nothing": nothing_tried(),
        "hostile": hostile(),
    }
