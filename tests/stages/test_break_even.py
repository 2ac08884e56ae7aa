"""A knob with start-up cost is kept only if the planned steps win it back; the result states the
cost and when it is recovered.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.executors.base import WALL_S, FixedRun
from autotune.results import Result
from autotune.stages.searching.block_times import COMPILE_S
from autotune_spaces.base import Config
from autotune_spaces.knobs.compile_mode import WORDS
from autotune_trials.protocol.messages import Block, BlockReport, Record

SPACE = "{num_workers: [2], cudnn_benchmark: [true]}"
SEARCH_S = 6.0  # cost of cuDNN's search, in the first three iterations


def slow_start(request: FixedRun, record: Record) -> Record:
    if not request.config.get("cudnn_benchmark"):
        return record
    times = list(record.window.times_s)
    for index in range(3):
        times[index] += SEARCH_S / 3
    return replace(record, window=replace(record.window, times_s=tuple(times)))


def tuned_on_a_gpu(folder: Path, planned_steps: int, objective: str = "throughput") -> Result:
    extra = f"planned_steps: {planned_steps}\nobjective: {objective}"
    return run(folder, gpu(), job(folder, SPACE, extra))


def gpu() -> Machine:
    speeds = {"num_workers": {"2": 0.7}, "cudnn_benchmark": {"true": 0.8}}
    machine = {
        "cores": 4,
        "device": "cuda",
        "device_name": "H200",
        "device_memory_gib": 141.0,
        "compute_capability": [9, 0],
        "cuda_version": "12.8",
    }
    return Machine(table(loss=Loss(), factors=speeds, machine=machine), slow_start)


def test_a_process_knobs_start_up_is_measured_and_won_back(tmp_path: Path) -> None:
    result = tuned_on_a_gpu(tmp_path, planned_steps=20_000)
    trial = next(t for t in result.trials if "cudnn_benchmark" in t.config)
    assert trial.origin == "process"
    assert trial.settle_s == pytest.approx(SEARCH_S, rel=0.25)
    gain = next(g for g in result.gains if g.knob == "cudnn_benchmark")
    assert gain.kept
    assert gain.start_up_s == trial.settle_s
    saved_s = result.observation.anatomy.iteration_s * 0.7 * 0.2  # beside two workers
    assert gain.break_even_steps == pytest.approx(SEARCH_S / saved_s, rel=0.35)


class Compiling(Machine):
    """The search sees SEARCH_S of compiling."""

    def report(self, block: Block, config: Config) -> BlockReport:
        found = super().report(block, config)
        compiled = config.get("compile_mode") == "default"
        return replace(found, settle_s=found.settle_s + SEARCH_S * compiled)


def test_a_sampler_counts_the_steps_beside_the_other_knobs(tmp_path: Path) -> None:
    speeds = {"num_workers": {"2": 0.4}, "compile_mode": {"default": 0.8}}
    machine = Compiling(table(loss=Loss(), factors=speeds, machine={"cores": 4}))
    spec = job(tmp_path, "{num_workers: [2], compile_mode: [default]}", "search: tpe")
    result = run(tmp_path, machine, spec)
    gain = next(g for g in result.gains if g.knob == "compile_mode")
    saved_s = result.observation.anatomy.iteration_s * 0.4 * 0.2
    assert gain.break_even_steps == pytest.approx(gain.start_up_s / saved_s, rel=0.35)


def test_every_way_to_compile_has_a_price() -> None:
    assert set(COMPILE_S) == {*WORDS} - {"off"}


def test_few_planned_steps_send_it_back(tmp_path: Path) -> None:
    result = tuned_on_a_gpu(tmp_path, planned_steps=200)
    gain = next(g for g in result.gains if g.knob == "cudnn_benchmark")
    assert not gain.kept
    assert "start-up are paid back only after" in gain.reason
    assert dict(result.knobs) == {"num_workers": 2}


def test_time_to_train_counts_the_start_up(tmp_path: Path) -> None:
    long = tuned_on_a_gpu(tmp_path / "long", 100_000, "time_to_train")
    assert dict(long.knobs) == {"num_workers": 2, "cudnn_benchmark": True}
    short = tuned_on_a_gpu(tmp_path / "short", 200, "time_to_train")
    assert dict(short.knobs) == {"num_workers": 2}


def test_a_process_knob_that_did_nothing_is_no_candidate(tmp_path: Path) -> None:
    why = "something drops LD_PRELOAD before it starts"

    def useless(request: FixedRun, record: Record) -> Record:
        return replace(record, no_effect={"malloc": why}) if request.config else record

    planted = table(
        loss=Loss(),
        factors={"malloc": {"jemalloc": 0.5}},
        job={"surveys": {"malloc": {"jemalloc": "/usr/lib/libjemalloc.so.2"}}},
    )
    result = run(tmp_path, Machine(planted, useless), job(tmp_path, "{malloc: [jemalloc]}"))
    (trial,) = result.trials
    assert (trial.state, trial.no_effect) == ("failed", {"malloc": why})
    assert dict(result.knobs) == {}


@pytest.mark.parametrize(("planned_steps", "kept"), [(100_000, True), (2_000, False)])
def test_the_start_up_of_a_flag_of_the_jobs_own_counts_too(
    tmp_path: Path, planned_steps: int, kept: bool
) -> None:
    """``--compile``, whose start-up no knob declares: 100 s, for a fifth of 20 ms a step."""

    def compiles(request: FixedRun, record: Record) -> Record:
        times = list(record.window.times_s)
        times[0] += 100.0 * (request.config.get("compile") == "on")
        wall_s = sum(times) + 2.0
        return replace(
            record,
            window=replace(record.window, times_s=tuple(times)),
            notes={**record.notes, WALL_S: wall_s},
        )

    space = '{compile: {via: "--compile {}", values: ["off", "on"], default: "off", numerics: rounding}}'
    machine = Machine(table(loss=Loss(), factors={"compile": {"on": 0.8}}), compiles)
    result = run(tmp_path, machine, job(tmp_path, space, f"planned_steps: {planned_steps}"))
    assert dict(result.knobs) == ({"compile": "on"} if kept else {})
    assert kept or f"{planned_steps} steps (planned_steps) take" in result.reason
