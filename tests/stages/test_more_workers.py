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
from autotune.stages.searching.more_workers import MORE_WORKERS
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
