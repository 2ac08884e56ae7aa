"""While the loader is the bottleneck, only its knobs are searched."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from replayed import Loss, Machine, job, run, table

from autotune.executors.base import LiveSession
from autotune.search.focus import at_ceiling, knobs_that_matter
from autotune.stages.measuring.kept_session import TOO_MANY_WORKERS
from autotune.stages.searching.models import to_blame
from autotune_spaces.facts import JobFacts
from autotune_trials.protocol.messages import Block, BlockReport, Window

NAMES = ("amp_dtype", "num_workers", "batch_size", "persistent_workers", "malloc")
LOADER, OTHERS = ("num_workers", "persistent_workers"), ("amp_dtype", "batch_size", "malloc")


@pytest.mark.parametrize(
    ("bottleneck", "now", "later"),
    [
        ("loader", LOADER, OTHERS),
        ("epoch ends", LOADER, OTHERS),
        ("compute", NAMES, ()),
        ("optimizer", NAMES, ()),
    ],
)
def test_what_can_matter_now(bottleneck: str, now: tuple[str, ...], later: tuple[str, ...]) -> None:
    assert knobs_that_matter(bottleneck, NAMES) == (now, later)


def test_threads_compete_with_workers_and_are_searched_beside_them() -> None:
    names = ("amp_dtype", "num_workers", "intra_op_threads")
    assert knobs_that_matter("loader", names) == (names[1:], names[:1])


def test_a_loader_bound_job_without_a_knob_for_its_loader_is_searched_all_the_same() -> None:
    assert knobs_that_matter("loader", OTHERS) == (OTHERS, ())


@pytest.mark.parametrize(
    ("speedup", "sd", "ceiling", "reached"),
    [
        (3.9, 0.002, 4.0, True),
        (3.9, 0.05, 4.0, False),
        (3.8, 0.002, 4.0, False),
        (5.0, 0.05, 4.0, True),
        (9.0, 0.0, None, False),
    ],
)
def test_at_the_ceiling(speedup: float, sd: float, ceiling: float | None, reached: bool) -> None:
    assert at_ceiling(math.log(speedup), sd, ceiling) is reached


@pytest.mark.parametrize(
    ("config", "reason", "blamed"),
    [
        ({"num_workers": 64}, "out of memory (…)", "num_workers"),
        ({"num_workers": 64, "prefetch_factor": 8}, "killed 3 times in a row (…)", "num_workers"),
        (
            {"num_workers": 64, "amp_dtype": "bfloat16"},
            f"64 {TOO_MANY_WORKERS} (OSError: [Errno 24] …)",
            "num_workers",
        ),
        ({"num_workers": 4, "batch_size": 512}, "out of memory (CUDA out of memory)", "batch_size"),
        (
            {"num_workers": 4, "compile_mode": "default"},
            "out of memory (CUDA out of memory)",
            "batch_size",
        ),
    ],
)
def test_where_the_machine_ended_the_knob_that_took_too_much_is_blamed(
    config: dict, reason: str, blamed: tuple[str, ...]
) -> None:
    assert to_blame(config, reason) == blamed


def test_a_job_that_goes_on_waiting_is_searched_beyond_its_loader(tmp_path: Path) -> None:
    """Without workers, waiting and computing add up: computing at 0.7 of its 45% saves 14%."""
    speeds = {"num_workers": {"1": 1.0, "2": 1.0}, "amp_dtype": {"bfloat16": 0.86}}
    waiting = table(Loss(), factors=speeds, phases={"data": 0.55, "forward": 0.45})
    spec = job(tmp_path, "{num_workers: [1, 2], amp_dtype: [bfloat16]}")
    result = run(tmp_path, Machine(waiting), spec)
    assert dict(result.knobs) == {"amp_dtype": "bfloat16"}
    tried = [set(trial.config) for trial in result.trials]
    first = next(n for n, names in enumerate(tried) if "amp_dtype" in names)
    assert {"num_workers"} in tried[:first], "the loader's knobs come first"


class Waits(Machine):
    """Replays a job that waits for batches most of its time, until it has workers."""

    opened = kept = 0

    def open_live(self) -> LiveSession:
        self.opened += 1
        return super().open_live()

    def keep(self, session: LiveSession) -> None:
        self.kept += 1
        super().keep(session)

    def report(self, block: Block, config: dict) -> BlockReport:
        slow, fast = self.table, replace(self.table, phases={"data": 0.02, "forward": 0.98})
        self.table = fast if config.get("num_workers") else slow
        try:
            return super().report(block, config)
        finally:
            self.table = slow


def test_once_it_no_longer_waits_all_knobs_are_searched(tmp_path: Path) -> None:
    """The loader's knobs do not take the whole search for their last per cent."""
    speeds = {
        "num_workers": {"1": 0.4, "2": 0.35, "4": 0.36},
        "amp_dtype": {"bfloat16": 0.7},
        "prefetch_factor": {"4": 1.0, "8": 1.0},
    }
    waiting = table(
        Loss(), factors=speeds, phases={"data": 0.7, "forward": 0.3}, noise=0.1, block_noise=0.05
    )
    space = "{num_workers: [1, 2, 4], prefetch_factor: auto, amp_dtype: [bfloat16]}"
    machine = Waits(waiting)
    spec = job(tmp_path / "job", space, "budget: {minutes: 3}\n")
    found = run(tmp_path / "run", machine, spec, clock=lambda _: machine.elapsed_s).knobs
    assert machine.opened == 2, "one session to observe, and one for the whole search"
    assert machine.kept == 1, "the first is offered to the search"
    assert found["amp_dtype"] == "bfloat16" and found["num_workers"] in (2, 4)
    lines = (tmp_path / "run" / "run" / "journal.jsonl").read_text().splitlines()
    series = [
        {name for block in e["data"] for name in block["config"]}
        for e in map(json.loads, lines)
        if e["kind"] == "plot"
    ]
    first = next(n for n, names in enumerate(series) if "amp_dtype" in names)
    assert set.union(*series[:first]) >= {"num_workers", "prefetch_factor"}
    assert 3 < first < 12


@pytest.mark.parametrize("seed", range(2))
def test_the_loaders_knobs_take_half_of_the_time_at_most(tmp_path: Path, seed: int) -> None:
    """On a noisy machine it is open to the end whether workers, which change nothing, do."""
    speeds = {"num_workers": {"1": 1.0, "2": 1.0, "4": 1.0}, "amp_dtype": {"bfloat16": 0.8}}
    noisy = table(
        Loss(),
        factors=speeds,
        phases={"data": 0.6, "forward": 0.4},
        noise=0.1,
        block_noise=0.3,
        cost_s=0.001,
    )
    machine = Machine(noisy, seed=seed)
    space = "{num_workers: [1, 2, 4], prefetch_factor: auto, persistent_workers: auto, amp_dtype: [bfloat16], optimizer_impl: [fused]}"
    spec = job(tmp_path, space, "budget: {minutes: 3}\n")
    result = run(tmp_path, machine, spec, clock=lambda _: machine.elapsed_s)
    assert any("amp_dtype" in trial.config for trial in result.trials)


def test_where_no_trial_is_left_for_the_others_no_search_is_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {"num_workers": {"1": 0.9, "2": 0.8}, "amp_dtype": {"bfloat16": 0.7}}
    waiting = table(Loss(), factors=speeds, phases={"data": 0.8, "forward": 0.2})
    spec = job(tmp_path, "{num_workers: [1, 2], amp_dtype: [bfloat16]}", "budget: {trials: 2}\n")
    result = run(tmp_path, Machine(waiting), spec, shown="auto")
    assert not any("amp_dtype" in trial.config for trial in result.trials)
    assert "(budget.trials is used up); nothing is left for the others" in capsys.readouterr().out


class LosesEpochEnds(Machine):
    """Replays a job that hardly waits for batches, but loses most of its time at epoch ends.

    Few of the search's blocks, of some 16 iterations, have one.
    """

    free, begun = False, 0

    def window(self, times_s: Sequence[float], samples: float) -> Window:
        window, epoch = super().window(times_s, samples), self.table.epoch_iterations
        if self.free:
            return replace(window, turnovers_s=())
        begun, self.begun = self.begun, self.begun + len(times_s)
        ends = tuple(at for at in range(1, len(times_s)) if (begun + at) % epoch == 0)
        lost_s = self.lost_s(math.fsum(times_s) / len(times_s))
        return replace(window, turnovers_at=ends, turnovers_s=(lost_s,) * len(ends))

    def report(self, block: Block, config: dict) -> BlockReport:
        self.free = block.cached_batches or bool(config.get("persistent_workers"))
        try:
            report = super().report(block, config)
        finally:
            free, self.free = self.free, False
        assert report.window is not None
        mean_s = math.fsum(report.window.times_s) / len(report.window.times_s)
        return report if free else replace(report, rebuild_s=self.lost_s(mean_s))

    def lost_s(self, iteration_s: float) -> float:
        return 3 * self.table.epoch_iterations * iteration_s

    def _job(self) -> JobFacts:
        facts = super()._job()
        assert facts.loader is not None
        return replace(facts, loader=replace(facts.loader, num_workers=2))


@pytest.mark.parametrize(
    ("space", "cured"),
    [("num_workers: [1, 2]", False), ("persistent_workers: [true], prefetch_factor: [4, 8]", True)],
)
def test_a_job_that_loses_epoch_ends_is_said_to_have_stopped_once_it_has(
    space: str, cured: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {
        "num_workers": {"1": 1.0, "2": 1.0},
        "persistent_workers": {"true": 1.0},
        "prefetch_factor": {"4": 0.99, "8": 0.98},
        "amp_dtype": {"bfloat16": 0.7},
    }
    losing = table(
        Loss(),
        factors=speeds,
        phases={"data": 0.02, "forward": 0.98},
        epoch_iterations=40,
        noise=0.1,
        block_noise=0.05,
    )
    spec = job(tmp_path, f"{{{space}, amp_dtype: [bfloat16]}}")
    result = run(tmp_path, LosesEpochEnds(losing), spec, shown="auto")
    assert result.observation.bottleneck == "epoch ends"
    said = capsys.readouterr().out
    assert "finished " in said
    why = said.partition("finished ")[2].partition(")")[0]
    # whichever is seen first
    assert ("no longer lost" in why or "infinitely fast loader" in why) is cured
