"""A knob that costs its start-up is kept only if the planned steps win it back; what it costs and
when is said.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from replayed import Machine, job, run, table

from autotune.executors.base import PREPARATION_S, FixedRun
from autotune.executors.replay import Loss
from autotune.results import Result
from autotune_trials.protocol.messages import Record

SPACE = "{num_workers: [2], cudnn_benchmark: [true]}"
SEARCH_S = 6.0  # what cuDNN's search costs, spread over the first three iterations


def slow_start(request: FixedRun, record: Record) -> Record:
    if not request.config.get("cudnn_benchmark"):
        return record
    times = list(record.window.times_s)
    for index in range(3):
        times[index] += SEARCH_S / 3
    return replace(record, window=replace(record.window, times_s=tuple(times)))


def tuned_on_a_gpu(folder: Path, planned_steps: int) -> Result:
    return run(folder, gpu(), job(folder, SPACE, f"planned_steps: {planned_steps}"))


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
    saved_s = result.observation.anatomy.iteration_s * 0.2
    assert gain.break_even_steps == pytest.approx(SEARCH_S / saved_s, rel=0.35)


def test_few_planned_steps_send_it_back(tmp_path: Path) -> None:
    result = tuned_on_a_gpu(tmp_path, planned_steps=200)
    gain = next(g for g in result.gains if g.knob == "cudnn_benchmark")
    assert not gain.kept
    assert "start-up pay back only after" in gain.reason
    assert dict(result.knobs) == {"num_workers": 2}


COPY_S = 40.0
DATA = {"surveys": {"data_staging": {"paths": ["data"], "bytes": 2**30, "trouble": ""}}}


def copied_first(request: FixedRun, record: Record) -> Record:
    """What the local executor notes of a run whose data were copied to memory before it started."""
    return (
        replace(record, notes={**record.notes, PREPARATION_S: COPY_S})
        if request.config.get("data_staging") == "shm"
        else record
    )


def staged(folder: Path, planned_steps: int, objective: str = "throughput") -> Result:
    planted = table(loss=Loss(), factors={"data_staging": {"shm": 0.7}}, job=DATA)
    spec = job(
        folder, "{data_staging: auto}", f"planned_steps: {planned_steps}\nobjective: {objective}"
    )
    return run(folder, Machine(planted, copied_first), spec)


def test_copying_data_is_a_start_up_cost(tmp_path: Path) -> None:
    result = staged(tmp_path, planned_steps=100_000)
    assert dict(result.knobs) == {"data_staging": "shm"}
    (gain,) = result.gains
    assert gain.start_up_s == pytest.approx(COPY_S, rel=0.1)
    assert gain.break_even_steps == pytest.approx(
        COPY_S / (result.observation.anatomy.iteration_s * 0.3), rel=0.25
    )


def test_a_short_job_does_not_copy(tmp_path: Path) -> None:
    result = staged(tmp_path, planned_steps=500)
    assert dict(result.knobs) == {}
    assert "start-up pay back only after" in result.gains[0].reason


def test_time_to_train_counts_the_copy(tmp_path: Path) -> None:
    assert dict(staged(tmp_path / "long", 100_000, "time_to_train").knobs) == {
        "data_staging": "shm"
    }
    assert dict(staged(tmp_path / "short", 500, "time_to_train").knobs) == {}


def test_a_process_knob_that_did_nothing_is_no_candidate(tmp_path: Path) -> None:
    def useless(request: FixedRun, record: Record) -> Record:
        return (
            replace(record, no_effect={"data_staging": "nobody read the copy"})
            if request.config
            else record
        )

    planted = table(loss=Loss(), factors={"data_staging": {"shm": 0.5}}, job=DATA)
    result = run(tmp_path, Machine(planted, useless), job(tmp_path, "{data_staging: auto}"))
    (trial,) = result.trials
    assert (trial.state, trial.no_effect) == ("failed", {"data_staging": "nobody read the copy"})
    assert dict(result.knobs) == {}
