"""Energy, money and two objectives at once, on a replayed machine with known watts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay import Loss
from replayed import Machine, context_of, job, run, table

from autotune.errors import InputError
from autotune.executors.base import FixedRun
from autotune.report.page.html import render
from autotune.report.terminal.closing import closing_text
from autotune.report.text.story import evidence, headline, unbeaten_rows
from autotune.results import Result, Trial, TrialState
from autotune.search.pareto import Figures
from autotune.stages.measuring.own_blocks import FIRST_ITERATIONS, OwnBlocks, window_of
from autotune_spaces.base import Config, SearchSpace
from autotune_spaces.knobs import create
from autotune_trials.protocol.messages import Block, BlockReport, Record, Window

SPACE = "{num_workers: [2], amp_dtype: [bfloat16], optimizer_impl: [fused]}"
WATTS = 50.0
# Workers are faster, but need more power than that is worth; bfloat16 is worth both.
POWER = {"num_workers": 1.8, "amp_dtype": 1.2, "optimizer_impl": 1.0}


class Powered(Machine):
    """``counts``: whether its energy counters can be read."""

    def __init__(self, counts: bool = True, **fields: Any) -> None:
        super().__init__(table(Loss(), **fields))
        self.counts = counts

    def _with_joules(self, window: Window, config: Config) -> Window:
        watts = WATTS * math.prod(POWER.get(name, 1.0) for name in config)
        joules = tuple(watts * t for t in window.times_s) if self.counts else ()
        return replace(window, joules=joules)

    def run_fixed(self, request: FixedRun) -> Record:
        record = super().run_fixed(request)
        return replace(record, window=self._with_joules(record.window, request.config))

    def report(self, block: Block, config: Config) -> BlockReport:
        report = super().report(block, config)
        assert report.window is not None
        if block.iterations == FIRST_ITERATIONS:  # too short for a counter that moves every 0.1 s
            return report
        return replace(report, window=self._with_joules(report.window, config))


def tuned(folder: Path, extra: str) -> Result:
    return run(folder, Powered(), job(folder, SPACE, extra))


@pytest.mark.parametrize("search", ["model", "tpe"])
def test_what_is_faster_for_more_energy_than_it_is_worth_is_left(
    tmp_path: Path, search: str
) -> None:
    result = tuned(tmp_path, f"objective: energy\nsearch: {search}\n")
    assert dict(result.knobs) == {"amp_dtype": "bfloat16", "optimizer_impl": "fused"}
    assert result.speedup.estimate == pytest.approx(1 / (0.6 * 1.2 * 0.9), rel=0.03)
    assert "× more energy-efficient (95%" in headline(result)
    assert result.confirmation.reason.startswith("more energy-efficient: ")
    training = result.confirmation.training  # of time, which is a different factor
    assert training.before_s / training.after_s == pytest.approx(1 / (0.6 * 0.9), rel=0.05)
    assert result.points == () and result.confirmation.second is None


@pytest.mark.parametrize("search", ["model", "tpe"])
def test_of_two_the_first_decides_and_both_are_told(tmp_path: Path, search: str) -> None:
    result = tuned(tmp_path, f"objective: [throughput, energy]\nsearch: {search}\n")
    assert set(result.knobs) == {"num_workers", "amp_dtype", "optimizer_impl"}
    assert result.speedup.estimate == pytest.approx(1 / (0.7 * 0.6 * 0.9), rel=0.03)
    second = 1 / (0.7 * 1.8 * 0.6 * 1.2 * 0.9)
    assert result.confirmation.second.estimate == pytest.approx(second, rel=0.03)
    for point in result.points:
        power = math.prod(POWER[name] for name in point.config)
        assert point.second == pytest.approx(point.first / power, rel=0.05), point
    unbeaten = {frozenset(p.config) for p in result.points if not p.beaten}
    assert frozenset({"num_workers", "amp_dtype", "optimizer_impl"}) in unbeaten
    assert frozenset({"amp_dtype", "optimizer_impl"}) in unbeaten
    assert frozenset({"num_workers"}) not in unbeaten and frozenset() not in unbeaten
    assert any(
        "the samples per joule; not part of the decision" in line for line in evidence(result)
    )
    page, screen = render(result, tmp_path / "run"), closing_text(result, tmp_path / "run")
    for text in (page, screen):
        assert "Both objectives" in text and "× the samples per joule" in text
    assert len(unbeaten_rows(result)) == len(unbeaten)


def test_of_throughput_and_the_whole_training_start_up_is_the_difference(tmp_path: Path) -> None:
    result = tuned(tmp_path, "objective: [throughput, time_to_train]\nplanned_steps: 1000\n")
    before_s, start_s = 1000 * 0.0005 * 32, 5.0
    assert result.points
    for point in result.points:
        whole_s = start_s + before_s / point.first
        assert point.second == pytest.approx((start_s + before_s) / whole_s, rel=0.03)


def test_runs_of_fresh_processes_are_drawn_as_they_were_compared(tmp_path: Path) -> None:
    """With time_to_train, the figure already includes their start-up."""
    result = tuned(tmp_path, "objective: [throughput, time_to_train]\nplanned_steps: 1000\n")
    space = SearchSpace("auto", tuple(create(name, {}) for name in ("malloc", "compile_mode")))
    config = {"malloc": "jemalloc", "compile_mode": "default"}
    trial = Trial(
        7,
        config,
        TrialState.COMPLETE,
        log_ratio=-0.3,
        second_log_ratio=-0.1,
        settle_s=10.0,
        origin="process",
    )
    figures = Figures(("throughput", "time_to_train"), space, result.observation, 1000, [trial])
    assert figures.of(trial) == (-0.3, -0.1)
    live = replace(trial, origin="sampled", second_log_ratio=None)
    assert figures.of(live)[1] > figures.of(live)[0]


def test_what_fresh_processes_were_compared_with_is_charged_its_start_up(tmp_path: Path) -> None:
    result = tuned(tmp_path, "objective: [time_to_train, energy]\nplanned_steps: 1000\n")
    space = SearchSpace("auto", tuple(create(name, {}) for name in ("malloc", "compile_mode")))
    compiled = Trial(
        1,
        {"compile_mode": "default"},
        TrialState.COMPLETE,
        log_ratio=-0.4,
        second_log_ratio=-0.2,
        settle_s=10.0,
        origin="compile",
    )
    beside = Trial(
        2,
        {**compiled.config, "malloc": "jemalloc"},
        TrialState.COMPLETE,
        log_ratio=-0.45,
        second_log_ratio=-0.25,
        origin="process",
        reference=compiled.config,
    )
    trials = (compiled, beside)
    objectives = ("time_to_train", "energy")
    figures = Figures(objectives, space, result.observation, 1000, trials)
    whole, energy = figures.of(compiled)
    assert whole > -0.4 and energy == -0.2
    assert figures.of(beside) == pytest.approx((whole - 0.05, -0.25))


def test_cost_is_the_whole_training_at_a_price(tmp_path: Path) -> None:
    result = tuned(tmp_path, "objective: cost\nprice: 3.6\nplanned_steps: 1000\n")
    assert "× cheaper (95%" in headline(result)
    training = result.confirmation.training
    assert training.before_s == pytest.approx(5.0 + 1000 * 0.0005 * 32, rel=0.05)
    said = next(line for line in evidence(result) if "1,000 steps (planned_steps)" in line)
    assert f"({training.before_s * 0.001:.3g})" in said


def test_a_machine_that_counts_no_energy_is_told_before_the_search(tmp_path: Path) -> None:
    machine = Powered(counts=False)
    with pytest.raises(InputError, match="this machine has no readable energy counter"):
        run(tmp_path, machine, job(tmp_path, SPACE, "objective: energy\n"))
    assert {request.label for request in machine.requests} == {"first-run"}


def test_without_a_second_objective_none_is_searched_for(tmp_path: Path) -> None:
    """The seconds of a block are its second figure where the objective is energy."""
    speeds = {
        "num_workers": {"1": 0.8, "2": 0.7, "4": 0.6},
        "amp_dtype": {"bfloat16": 0.6},
        "optimizer_impl": {"fused": 0.9, "foreach": 0.95},
    }
    machine = Powered(factors=speeds, noise=0.05, block_noise=0.05)
    space = (
        "{num_workers: [1, 2, 4], amp_dtype: auto, optimizer_impl: auto, intra_op_threads: auto}"
    )
    spec = job(tmp_path, space, "objective: energy\nbudget: {minutes: 20}\n")
    run(tmp_path, machine, spec, clock=lambda _: machine.elapsed_s)
    lines = (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    blocks = [b for e in map(json.loads, lines) if e["kind"] == "plot" for b in e["data"]]
    assert any(block["second_log_cost"] is not None for block in blocks)
    assert len(blocks) < 400


@pytest.mark.parametrize(("device", "lasts_s"), [("cpu", 0.7), ("cuda", 1.5)])
def test_own_blocks_are_long_against_the_updates_of_a_gpus_counter(
    tmp_path: Path, device: str, lasts_s: float
) -> None:
    machine = Powered(machine={"device": device, "device_memory_gib": 80.0})
    spec = job(tmp_path, SPACE, "objective: energy\n")
    with context_of(tmp_path, machine, spec) as context, OwnBlocks(context) as live:
        assert live.session.job.device == device
        live.size()
        window = window_of(live.block())
    assert math.fsum(window.times_s) == pytest.approx(lasts_s, rel=0.2)
