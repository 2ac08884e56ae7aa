"""A model that tuning has made fast waits for its workers again: more of them are looked at once
more.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.executors.base import FixedRun
from autotune.results import Anatomy, Trial, TrialState
from autotune.stages.searching.more_workers import MORE_WORKERS, next_look
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Record, Window

SPACE = "{num_workers: [2, 4, 8], amp_dtype: [bfloat16], optimizer_impl: [fused]}"
READING = 4.0  # seconds that one worker reads per second of untuned compute
COMPUTE = {"amp_dtype": 0.6, "optimizer_impl": 0.7}


class Overlapping(Machine):
    """An iteration takes the longer of reading and computing."""

    def __init__(self, seed: int) -> None:
        super().__init__(table(Loss(), factors={}), seed=seed)

    def _times(self, config: Config) -> tuple[float, float]:
        """(iteration, waiting for batches in it), in seconds of untuned compute."""
        compute, workers = 1.0, int(str(config.get("num_workers", 0)))
        for name, factor in COMPUTE.items():
            compute *= factor if name in config else 1.0
        whole = max(compute, READING / workers) if workers else compute + READING
        return whole, whole - compute

    def _overlapped(self, window: Window, config: Config) -> Window:
        whole, waiting = self._times(config)
        times = tuple(t * whole for t in window.times_s)
        waits = tuple(t * waiting for t in window.times_s)
        return replace(
            window,
            times_s=times,
            data_s=waits,
            phases_s={"data": sum(waits), "forward": sum(times) - sum(waits)},
            workers=int(str(config.get("num_workers", 0))),
        )

    def run_fixed(self, request: FixedRun) -> Record:
        record = super().run_fixed(request)
        return replace(record, window=self._overlapped(record.window, request.config))

    def report(self, block: Block, config: Config) -> BlockReport:
        report = super().report(block, config)
        assert report.window is not None
        if block.cached_batches:
            return report
        return replace(report, window=self._overlapped(report.window, config))


@pytest.mark.parametrize("seed", range(3))
def test_more_workers_are_looked_at_again_once_the_model_is_fast(tmp_path: Path, seed: int) -> None:
    """Untuned, 4 workers are as good as 8: both keep up with the model."""
    machine = Overlapping(seed)
    result = run(tmp_path, machine, job(tmp_path, SPACE))
    assert dict(result.knobs) == {
        "num_workers": 8,
        "amp_dtype": "bfloat16",
        "optimizer_impl": "fused",
    }


def test_a_resumed_search_keeps_the_figures_of_what_is_forgotten(tmp_path: Path) -> None:
    """It learns of the series before it searches the knobs that wait for the loader."""
    spec = job(tmp_path, SPACE)
    first = run(tmp_path, Overlapping(0), spec)
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    assert any(MORE_WORKERS in line for line in lines), "or this test shows nothing"
    journal.write_text("".join(lines[: kinds.index("trial")]))
    again = run(tmp_path, Overlapping(0), spec)
    assert again.knobs == first.knobs
    before = {t.number: t.log_ratio for t in first.trials if t.config.get("num_workers") == 4}
    after = {t.number: t.log_ratio for t in again.trials if t.number in before}
    assert before and after == pytest.approx(before, abs=1e-6)


def test_a_comparison_that_other_load_has_disturbed_is_made_once_more(tmp_path: Path) -> None:
    spec = job(tmp_path, SPACE)
    run(tmp_path, Overlapping(0), spec)
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if MORE_WORKERS in line)
    entry = json.loads(lines[at])
    numbers = [block["config"]["num_workers"] for block in entry["data"]]
    for block in entry["data"]:
        if block["config"]["num_workers"] == numbers[0]:
            block["log_cost"] = None
    journal.write_text("".join(lines[:at]) + json.dumps(entry) + "\n")
    assert run(tmp_path, Overlapping(0), spec).knobs["num_workers"] == 8
    compared = [
        [block["config"]["num_workers"] for block in json.loads(line)["data"]]
        for line in journal.read_text().splitlines()
        if MORE_WORKERS in line and json.loads(line)["kind"] == "plot"
    ]
    assert compared.count(numbers) == 2


def best(workers: int, model_s: float, waiting_s: float) -> Trial:
    whole_s = model_s + waiting_s
    parts = Anatomy(
        phases_s={"data": waiting_s, "forward": model_s},
        iteration_s=whole_s,
        median_s=whole_s,
        min_s=whole_s,
        max_s=whole_s,
        samples_per_s=1 / whole_s,
        reader_cost_s=waiting_s,
        batch_cost_s=whole_s,
        reader_ratio=waiting_s / whole_s,
        iterations=10,
        left_out=0,
    )
    return Trial(1, {"num_workers": workers}, TrialState.COMPLETE, -1.0, 0.1, anatomy=parts)


@pytest.mark.parametrize(
    ("trial", "hidden", "looked", "numbers"),
    [
        pytest.param(best(4, 0.8, 0.2), {4}, {}, (4, 8), id="it waits: with more"),
        pytest.param(best(8, 0.8, 0.0), {0, 4}, {}, (4, 8), id="fewer waited: with fewer"),
        pytest.param(best(8, 0.8, 0.0), {0}, {}, (0, 8), id="4 did not wait"),
        pytest.param(best(8, 0.8, 0.0), set(), {}, (), id="nothing waited"),
        pytest.param(best(8, 0.8, 0.2), {4}, {}, (), id="there are no more"),
        pytest.param(best(4, 0.8, 0.2), {4}, {8: 0.85}, (), id="looked at, the model is the same"),
        pytest.param(best(4, 0.7, 0.2), {4}, {8: 0.8}, (4, 8), id="looked at, a faster model"),
    ],
)
def test_which_numbers_are_compared(
    trial: Trial, hidden: set[int], looked: dict[int, float], numbers: tuple[int, ...]
) -> None:
    series = next_look(trial, 0, {0, 4, 8}, hidden, looked)
    found = [config["num_workers"] for config in series.blocks] if series is not None else []
    assert found == [n for n in numbers for _ in range(3)]
