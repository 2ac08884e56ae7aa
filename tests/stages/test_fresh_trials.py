"""Knobs that the running job cannot decide are tried in fresh processes, and judged by their
expected gain.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.executors.base import WALL_S, FixedRun
from autotune.report.text.story import evidence
from autotune.results import Interval, KnobGain
from autotune.stages.decisions.worth_it import judged
from autotune.stages.measuring.fresh import FreshRuns
from autotune.stages.measuring.pair_figures import PairFigures
from autotune.stages.measuring.pairs import Pairs
from autotune.stages.searching import limits
from autotune.stages.searching.fresh_search import _beyond
from autotune.verdict.speedup import LogRatio
from autotune_trials.protocol.messages import Record, Window


def faster(record: Record, factor: float) -> Record:
    window = record.window
    times = tuple(t / factor for t in window.times_s)
    return replace(record, window=replace(window, times_s=times))


def test_a_knob_the_running_job_leaves_in_doubt_is_tried_in_fresh_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live it gains nothing in a few blocks that scatter by 3%; in a fresh process it gains 12%."""
    monkeypatch.setattr(limits, "MOST_BLOCKS", 30)

    def fused(request: FixedRun, record: Record) -> Record:
        return faster(record, 1.12) if request.config.get("optimizer_impl") else record

    speeds = {"optimizer_impl": {"fused": 1.0}, "amp_dtype": {"bfloat16": 0.7}}
    machine = Machine(table(Loss(), factors=speeds, block_noise=0.03), fused)
    space = "{optimizer_impl: [fused], amp_dtype: [bfloat16]}"
    result = run(tmp_path, machine, job(tmp_path, space))
    assert set(result.knobs) == {"optimizer_impl", "amp_dtype"}
    (trial,) = [t for t in result.trials if t.origin == "process"]
    assert trial.config["optimizer_impl"] == "fused"
    (gain,) = [g for g in result.gains if g.knob == "optimizer_impl"]
    assert gain.kept and gain.speedup is not None
    assert gain.speedup.low < 1.12 < gain.speedup.high


class ByJobTime(Machine):
    """The run's time is the replayed job's time, without the tuner's own."""

    def clock(self, before: float) -> float:
        return before + self.elapsed_s


JEMALLOC = {"surveys": {"malloc": {"jemalloc": "/usr/lib/libjemalloc.so.2"}}}


@pytest.mark.parametrize(
    ("factors", "minutes", "pairs"),
    [
        ((1.0, 1.12, 0.96, 1.08, 1.07, 1.08), 20, 6),  # +2%, within its error; then +5%
        ((1.0, 1.12, 0.96, 1.08, 1.07, 1.08), 4, 3),  # the proof needs the time
        ((0.93, 0.94, 0.93), 20, 3),  # clearly slower
    ],
)
def test_what_three_pairs_leave_in_doubt_gets_three_more_while_there_is_time(
    factors: tuple[float, ...], minutes: float, pairs: int, tmp_path: Path
) -> None:
    def jemalloc(request: FixedRun, record: Record) -> Record:
        taken = request.config.get("malloc") and request.seed < len(factors)
        return faster(record, factors[request.seed]) if taken else record

    machine = ByJobTime(table(Loss(), factors={}, job=JEMALLOC, block_noise=0.002), jemalloc)
    spec = job(tmp_path, "{malloc: [jemalloc]}", f"budget: {{minutes: {minutes}}}\n")
    result = run(tmp_path, machine, spec, machine.clock)
    (trial,) = [t for t in result.trials if t.origin == "process"]
    assert trial.pairs == pairs
    assert len({r.label for r in machine.requests if "trial" in r.label}) == 2 * pairs
    assert bool(machine.confirmed()) is (pairs == 6)


def test_a_resumed_sampler_search_keeps_what_fresh_processes_have_shown(tmp_path: Path) -> None:
    def jemalloc(request: FixedRun, record: Record) -> Record:
        return faster(record, 1.2) if request.config.get("malloc") else record

    spec = job(
        tmp_path,
        "{num_workers: [2], amp_dtype: [bfloat16], malloc: [jemalloc]}",
        "search: random\n",
    )
    speeds = {"num_workers": {"2": 0.7}, "amp_dtype": {"bfloat16": 0.6}}
    planted = table(Loss(), factors=speeds, job=JEMALLOC)
    first = run(tmp_path, Machine(planted, jemalloc), spec)
    assert {"malloc", "amp_dtype"} <= set(first.knobs)
    journal = tmp_path / "run" / "journal.jsonl"
    entries = journal.read_text().splitlines()
    place = next(n for n, e in enumerate(entries) if json.loads(e)["kind"] == "search-done")
    journal.write_text("\n".join(entries[:place]) + "\n")
    assert run(tmp_path, Machine(planted, jemalloc), spec).knobs == first.knobs


@pytest.mark.parametrize(
    ("space", "budget", "untried"),
    [
        (
            "{num_workers: [2], malloc: [jemalloc]}",
            "minutes: 0.3",
            "num_workers, malloc=jemalloc in a fresh process (no time left before the proof: raise budget.minutes)",
        ),
        (
            "{num_workers: [2], malloc: [jemalloc]}",
            "trials: 1",
            "malloc=jemalloc in a fresh process (budget.trials is used up)",
        ),
        (
            "{num_workers: [2], amp_dtype: [bfloat16]}",
            "trials: 1",
            "amp_dtype (budget.trials is used up)",
        ),
    ],
)
def test_the_result_says_what_was_left_untried(
    tmp_path: Path, space: str, budget: str, untried: str
) -> None:
    planted = table(Loss(), factors={"num_workers": {"2": 0.7}}, job=JEMALLOC, startup_s=10.0)
    machine = ByJobTime(planted)
    spec = job(tmp_path, space, f"budget: {{{budget}}}\n")
    result = run(tmp_path, machine, spec, clock=machine.clock)
    assert result.untried == untried
    assert f"Not tried: {result.untried}." in evidence(result)


def test_where_fresh_runs_scatter_one_slow_pair_ends_no_trial(tmp_path: Path) -> None:
    """The second value's first pair is 12% slower, but the first value's pairs were 10% apart."""
    surveys = {"surveys": {"malloc": dict.fromkeys(("jemalloc", "tcmalloc"), "/usr/lib/lib.so")}}
    factors = {"jemalloc": (1.1, 0.9, 1.0), "tcmalloc": (0.88, 1.2, 1.2)}

    def scattering(request: FixedRun, record: Record) -> Record:
        seen = factors.get(str(request.config.get("malloc")), ())
        return faster(record, seen[request.seed]) if request.seed < len(seen) else record

    machine = Machine(table(Loss(), factors={}, job=surveys, block_noise=0.002), scattering)
    result = run(tmp_path, machine, job(tmp_path, "{malloc: [jemalloc, tcmalloc]}"))
    states = [t.state for t in result.trials if t.origin == "process"]
    assert states == ["complete", "complete"]


def test_a_job_that_is_slow_to_start_tries_a_process_knob_all_the_same(tmp_path: Path) -> None:
    """Eight pairs for the proof take 352 s of 600: only the time of its first look is reserved."""
    speeds = {"malloc": {"jemalloc": 0.7}}
    noisy = table(Loss(), factors=speeds, job=JEMALLOC, startup_s=18.0, block_noise=0.3)
    machine = ByJobTime(noisy)
    spec = job(
        tmp_path, "{malloc: [jemalloc], intra_op_threads: [1, 2, 3]}", "budget: {minutes: 10}\n"
    )
    result = run(tmp_path, machine, spec, machine.clock)
    assert [t.config["malloc"] for t in result.trials if t.origin == "process"] == ["jemalloc"]


@pytest.mark.parametrize(
    ("gain", "error", "kept"),
    [(0.10, 0.04, True), (0.07, 0.04, True), (0.02, 0.04, False), (0.02, 0.005, True)],
)
def test_it_is_kept_for_what_it_is_expected_to_gain(
    gain: float, error: float, kept: bool, tmp_path: Path
) -> None:
    """Two standard errors are not required: that would drop (0.07, 0.04)."""
    spec = job(tmp_path, "{malloc: auto}")
    it = judged(spec, "malloc", "retain", LogRatio(gain, error, 3))
    assert it.kept is kept and bool(it.reason) is not kept
    assert it.speedup is not None and 1 < it.speedup.estimate < 1 + 1.1 * gain


def test_a_second_value_of_a_knob_gains_what_the_first_did_as_well() -> None:
    first = KnobGain("malloc", "retain", Interval(1.2, 1.15, 1.25), True)
    second = KnobGain("malloc", "jemalloc", Interval(1.02, 1.0, 1.04), True)
    both = _beyond(first, second)
    assert (both.value, both.speedup.estimate) == ("jemalloc", pytest.approx(1.2 * 1.02))
    assert 1.15 < both.speedup.low < 1.18 and 1.27 < both.speedup.high < 1.3


class Epochs(Machine):
    """Epochs longer than a window, and workers that take 2 s to start in each."""

    def window(self, times_s: Sequence[float], samples: float) -> Window:
        window = super().window(times_s, samples)
        return replace(window, turnovers_s=(), epoch_iterations=400)


def test_an_epoch_end_that_no_window_holds_still_costs(tmp_path: Path) -> None:
    """1.25 times as fast within the epoch, minus the start of the workers in each epoch."""

    def restarting(request: FixedRun, record: Record) -> Record:
        workers = request.config.get("num_workers", 0)
        window = record.window
        start_s = 0.16 * sum(window.times_s) / len(window.times_s) * 400 * 1.25 if workers else 0.0
        data = (start_s, *(0.0 for _ in window.times_s[1:]))
        loader = {"num_workers": workers, "persistent_workers": False}
        return replace(
            record,
            window=replace(window, data_s=data),
            notes={**record.notes, "in_force": {"loader": loader}},
        )

    machine = Epochs(table(Loss(), factors={"num_workers": {"2": 0.8}}), restarting)
    result = run(tmp_path, machine, job(tmp_path, "{num_workers: [2]}"))
    assert result.verdict == "tuned"
    assert result.speedup.high < 1.15, "0.8 + 0.16 of the time, not 0.8"


@pytest.mark.parametrize(
    ("noise", "ratios", "low", "high"),
    [
        (0.31, [0.08, 0.09, 0.10], 0.03, 0.045),  # one block of four was disturbed
        (0.01, [0.08, 0.09, 0.10], 0.005, 0.01),
        (0.01, [0.00, 0.28, 0.00], 0.03, 0.1),  # the pairs show it themselves
    ],
)
def test_the_error_of_few_pairs_is_theirs_and_the_blocks(
    noise: float, ratios: list[float], low: float, high: float
) -> None:
    figures = PairFigures(SimpleNamespace(), {}, {})  # type: ignore[arg-type]
    figures.log_speedups = lambda: ratios  # type: ignore[method-assign]
    gain = figures.gain(noise)
    assert low < gain.standard_error < high and gain.pairs == 3


def of_records(objective: str = "throughput", **runs: Record) -> tuple[Pairs, dict[str, float]]:
    """One pair of records, and the seconds requested from the budget, by place."""
    asked: dict[str, float] = {}
    pairs: Any = object.__new__(Pairs)
    pairs.context = SimpleNamespace(
        spec=SimpleNamespace(objective=objective, planned_steps=1000),
        executor=SimpleNamespace(lanes=lambda: None),
        out_of_time_at=lambda place, ahead_s: bool(asked.setdefault(place, ahead_s)),
        journal=SimpleNamespace(find=lambda *_: None),
        observation=None,
    )
    pairs._fresh = FreshRuns(pairs.context, 240, "confirm1")
    pairs.label, pairs.configs = "confirm1", {"candidate": {}}
    pairs.reference, pairs.candidate = {0: runs["reference"]}, {0: runs["candidate"]}
    pairs.figures = PairFigures(pairs.context.spec, pairs.reference, pairs.candidate)
    return pairs, asked


def recorded(
    first_s: float = 0.1, wall_s: float = 0.0, loader: dict[str, Any] | None = None
) -> Record:
    """240 iterations of 0.1 s and 10 samples, a tenth of each waiting; the first batch takes
    ``first_s``.
    """
    window = Window(
        (0.1,) * 240,
        (10.0,) * 240,
        {},
        data_s=(first_s, *(0.01,) * 239),
        epoch_iterations=500,
        minor_fault_counts=(0,) * 240,
        system_times_s=(0.0,) * 240,
    )
    notes = {WALL_S: wall_s, "in_force": {"loader": loader}}
    return Record(0, window, (1.0,) * 240, (), notes=notes)


def test_workers_that_stay_pay_for_the_first_batch_of_an_epoch() -> None:
    def epoch_end_s(first_s: float, workers: int, persistent: bool) -> float:
        record = recorded(first_s, 0.0, {"num_workers": workers, "persistent_workers": persistent})
        pairs, _ = of_records(reference=record, candidate=record)
        return 500 * 10 * (pairs.figures.costs(record, record)[0] - 0.01)

    assert epoch_end_s(3.01, 4, persistent=False) == pytest.approx(3.0)
    assert epoch_end_s(3.01, 4, persistent=True) == pytest.approx(0.4), "4 batches of 0.1 s"
    assert epoch_end_s(0.21, 4, persistent=True) == pytest.approx(0.2)
    assert epoch_end_s(3.01, 0, persistent=False) == pytest.approx(0.0)


def test_an_epochs_end_that_one_window_just_misses_counts_for_both() -> None:
    """The slower side's window ends before it, and neither has workers to start."""
    before, after = recorded(), recorded()
    reached = replace(before.window, turnovers_s=(5.0,), turnovers_at=(200,))
    for sides in (
        (replace(before, window=reached), after),
        (after, replace(before, window=reached)),
    ):
        pairs, _ = of_records(reference=sides[0], candidate=sides[1])
        one, other = pairs.figures.costs(*sides)
        assert one == pytest.approx(other, rel=0.03)


def test_time_to_train_is_charged_for_compiling_that_the_search_has_seen() -> None:
    warm = recorded()
    pairs, _ = of_records("time_to_train", reference=warm, candidate=warm)
    assert pairs.figures.log_speedups() == [0.0]
    pairs.figures.cold_s = 50.0
    before, after = pairs.figures.costs(warm, warm)
    assert 1000 * 10 * (after - before) == pytest.approx(50.0)


def test_the_planned_training_is_told_from_start_to_end() -> None:
    run = recorded(wall_s=30.0)  # 24 s of training, 6 s of start and end
    pairs, _ = of_records(reference=run, candidate=run)
    training = pairs.figures.training_time(speedup=2.0)
    assert training is not None and training.steps == 1000
    assert training.before_s == pytest.approx(6.0 + 100.0)
    assert training.after_s == training.cold_s == pytest.approx(6.0 + 50.0)
    pairs.figures.cold_s = 20.0
    training = pairs.figures.training_time(speedup=2.0)
    assert training.after_s == pytest.approx(56.0) and training.cold_s == pytest.approx(76.0)

    pairs.context.spec.objective = "time_to_train"  # all of it is twice as fast, even the start
    training = pairs.figures.training_time(speedup=2.0)
    assert training.cold_s == pytest.approx(53.0) and training.after_s == pytest.approx(33.0)


def test_of_runs_whose_length_is_not_known_nothing_is_told() -> None:
    pairs, _ = of_records(reference=recorded(), candidate=recorded(wall_s=30.0))
    assert pairs.figures.training_time(speedup=2.0) is None


def test_runs_that_are_made_again_longer_start_again() -> None:
    run = recorded(wall_s=54.0)  # 24 s of training, 30 s of start, evaluation and end
    pairs, asked = of_records(reference=run, candidate=run)
    assert not pairs.lengthen(480)
    assert list(asked.values()) == [pytest.approx(2 * (54.0 + 24.0))]


@pytest.mark.parametrize(("startup_s", "announced"), [(3.0, False), (12.0, True)])
def test_a_short_search_without_an_answer_proves_what_it_left_in_doubt(
    tmp_path: Path, startup_s: float, announced: bool
) -> None:
    """The time kept for a proof would be left unused, or the longer time that was announced."""
    speeds = {"amp_dtype": {"bfloat16": 0.95}}
    planted = table(Loss(), factors=speeds, block_noise=0.1, startup_s=startup_s)
    machine = ByJobTime(planted, seed=2)
    space = "{amp_dtype: [bfloat16], optimizer_impl: [fused]}"
    spec = job(tmp_path, space, "budget: {minutes: 2}\n")
    result = run(tmp_path, machine, spec, clock=machine.clock)
    entries = [*map(json.loads, (tmp_path / "run" / "journal.jsonl").read_text().splitlines())]
    [found] = [e["data"] for e in entries if e["kind"] == "found"]
    assert any(gain["speedup"]["estimate"] > 1.02 for gain in found["gains"])
    assert not any(gain["kept"] for gain in found["gains"])
    assert not any(t.origin == "process" for t in result.trials)
    assert [e["kind"] for e in entries].count("announced") == announced
    assert machine.confirmed()


def test_what_fresh_processes_have_refuted_is_not_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_BLOCKS", 8)

    def slower(request: FixedRun, record: Record) -> Record:
        return faster(record, 0.5) if request.config.get("amp_dtype") else record

    planted = table(Loss(), factors={"amp_dtype": {"bfloat16": 0.95}}, block_noise=0.1)
    machine = Machine(planted, slower, seed=0)
    result = run(tmp_path, machine, job(tmp_path, "{amp_dtype: [bfloat16]}"))
    assert [t.state for t in result.trials if t.origin == "process"] == ["pruned"]
    assert not machine.confirmed()
