"""Live figures understate an allocator's gain: if there are many page faults, fresh processes
decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.executors.base import FixedRun
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Record, Window

SPACE = "{malloc: [default, retain], optimizer_impl: [fused]}"
GLIBC = {"retain": "glibc 2.36"}


class Heap(Machine):
    """A machine on which ``malloc=retain`` gains 1.4x in a fresh process, and takes ``live`` times
    the baseline's time in a running one; another allocator gains 1.35x.
    """

    def __init__(self, faults: int, live: float = 1.0, **others: str) -> None:
        speeds = {"optimizer_impl": {"fused": 0.8}, "malloc": {"retain": live}}
        surveys = {"surveys": {"malloc": {**GLIBC, **others}}}
        super().__init__(table(Loss(), factors=speeds, job=surveys), self.retained)
        self.faults = faults

    def window(self, times_s: Sequence[float], samples: float) -> Window:
        counts = (self.faults,) * len(times_s)
        window = super().window(times_s, samples)
        return replace(window, minor_faults=sum(counts), minor_fault_counts=counts)

    @staticmethod
    def retained(request: FixedRun, record: Record) -> Record:
        if "malloc" not in request.config:
            return record
        factor = 1.4 if request.config["malloc"] == "retain" else 1.35
        window = record.window
        faster = replace(
            window,
            times_s=tuple(t / factor for t in window.times_s),
            data_s=tuple(t / factor for t in window.data_s),
        )
        return replace(record, window=faster)


def test_with_many_page_faults_it_is_tried_in_fresh_processes_and_found(tmp_path: Path) -> None:
    machine = Heap(faults=5000, live=1.01)
    result = run(tmp_path, machine, job(tmp_path, SPACE))
    assert dict(result.knobs) == {"malloc": "retain", "optimizer_impl": "fused"}
    assert result.speedup.low < 1.4 / 0.8
    assert result.speedup.estimate == pytest.approx(1.4 / 0.8, rel=0.02)
    kept = {
        gain.knob: gain.speedup.estimate
        for gain in result.gains
        if gain.kept and gain.speedup is not None
    }
    assert kept["malloc"] == pytest.approx(1.4, rel=0.05)
    assert [gain.knob for gain in result.gains].count("malloc") == 1


def test_with_few_the_running_job_is_believed(tmp_path: Path) -> None:
    machine = Heap(faults=20)
    result = run(tmp_path, machine, job(tmp_path, SPACE))
    assert dict(result.knobs) == {"optimizer_impl": "fused"}
    assert not any("malloc" in request.config for request in machine.requests)


@pytest.mark.parametrize(("faults", "kept"), [(5000, True), (20, False)])
def test_a_small_live_gain_is_enough_where_it_is_known_too_low(
    faults: int, kept: bool, tmp_path: Path
) -> None:
    machine = Heap(faults, live=0.996)
    result = run(tmp_path, machine, job(tmp_path, SPACE))
    assert ("malloc" in result.knobs) is kept
    assert not any(trial.origin == "process" for trial in result.trials)


def test_another_value_that_gives_no_more_does_not_cost_the_one_that_is_kept(
    tmp_path: Path,
) -> None:
    machine = Heap(faults=5000, live=0.996, jemalloc="/usr/lib/libjemalloc.so.2")
    space = "{malloc: [default, retain, jemalloc], optimizer_impl: [fused]}"
    result = run(tmp_path, machine, job(tmp_path, space))
    (trial,) = [t for t in result.trials if t.origin == "process"]
    assert trial.config["malloc"] == "jemalloc"
    assert result.knobs["malloc"] == "retain"
    assert [(g.value, g.kept) for g in result.gains if g.knob == "malloc"] == [("retain", True)]


class KeptHeap(Heap):
    """Its live session keeps the heap that a bare job would release, so it has no page faults."""

    def report(self, block: Block, config: Config) -> BlockReport:
        report = super().report(block, config)
        assert report.window is not None
        return replace(report, window=replace(report.window, minor_faults=0))


def test_faults_that_only_a_bare_job_has_count(tmp_path: Path) -> None:
    result = run(tmp_path, KeptHeap(faults=5000, live=1.01), job(tmp_path, SPACE))
    assert result.knobs["malloc"] == "retain"
    assert result.observation.anatomy.minor_faults == 5000
