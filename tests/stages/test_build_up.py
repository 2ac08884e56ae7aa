"""The build-up of the gain: steps from the baseline to the confirmed figure, each measured once and
labelled with its source.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, run, table
from replayed import job as job_file

from autotune.explain.importance import FEWEST_TRIALS, importance
from autotune.results import Interval, KnobGain, Result, Trial
from autotune.stages.decisions import build_up as stage
from autotune.stages.decisions.build_up import (
    Step,
    cut_at_confirmed,
    joined,
    own_gains,
    prefixes,
    without_later,
)
from autotune.verdict.speedup import around

THREE = "{num_workers: [2], amp_dtype: [bfloat16], optimizer_impl: [fused]}"


def explained(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine | None = None,
    share: float = math.inf,
    search: str = "model",
    objective: str = "throughput",
) -> tuple[Result, Machine]:
    # a replayed run takes no time, so a share of it would be nothing
    monkeypatch.setattr(stage, "SHARE", share)
    machine = machine or Machine(table(loss=Loss()))
    spec = job_file(folder, THREE, f"objective: {objective}\nplanned_steps: 100000\n")
    spec = replace(spec, traces="finalists", search=search)
    return run(folder, machine, spec), machine


def test_steps_lead_from_the_baseline_to_the_confirmed_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = explained(tmp_path, monkeypatch)
    steps = result.explanation.build_up
    assert [step.knob for step in steps] == ["amp_dtype", "num_workers", "optimizer_impl"], (
        "the biggest own gain first"
    )
    assert [step.source for step in steps] == ["live", "live", "confirmed"]
    planted = [1 / 0.6, 1 / (0.6 * 0.7), 1 / (0.6 * 0.7 * 0.9)]
    for step, truth in zip(steps, planted, strict=True):
        assert step.cumulative == pytest.approx(truth, rel=0.03)
        assert step.low < step.cumulative < step.high
    assert (steps[-1].cumulative, steps[-1].low, steps[-1].high) == (
        result.speedup.estimate,
        result.speedup.low,
        result.speedup.high,
    )


def test_a_resumed_run_measures_no_step_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = explained(tmp_path, monkeypatch)
    journal = tmp_path / "run" / "journal.jsonl"
    stored = [
        e for e in map(json.loads, journal.read_text().splitlines()) if e["kind"] == "build-up"
    ]
    assert len(stored) == 2
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(
        "".join(
            line
            for line in lines
            if json.loads(line)["key"] != stored[1]["key"] or json.loads(line)["kind"] != "build-up"
        )
    )
    again, machine = explained(tmp_path, monkeypatch, Machine(table(loss=Loss()), seed=7))
    assert again.explanation.build_up[0] == first.explanation.build_up[0], "from the journal"
    assert again.explanation.build_up[1] != first.explanation.build_up[1], (
        "the lost one is measured anew"
    )


def test_without_the_time_figures_of_the_search_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tpe tries each knob on its own
    result, _ = explained(tmp_path, monkeypatch, share=-1.0, search="tpe")
    assert result.explanation.build_up[0].source == "search"
    assert result.explanation.build_up[-1].source == "confirmed"
    assert stage.TOO_LITTLE_TIME in result.explanation.notes
    alone = next(t for t in result.trials if dict(t.config) == {"amp_dtype": "bfloat16"})
    assert result.explanation.build_up[0].cumulative == pytest.approx(alone.speedup)


def test_figures_of_an_iteration_are_no_steps_of_a_whole_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = explained(tmp_path, monkeypatch, objective="time_to_train")
    assert {step.source for step in result.explanation.build_up} <= {"fresh", "confirmed"}


def test_a_kept_baseline_has_no_build_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = explained(tmp_path, monkeypatch, Machine(table(factors={})))
    assert result.verdict == "keep-baseline"
    assert result.explanation.build_up == ()


def test_a_single_knob_is_its_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = explained(
        tmp_path, monkeypatch, Machine(table(loss=Loss(), factors={"num_workers": {"2": 0.7}}))
    )
    [step] = result.explanation.build_up
    assert (step.knob, step.source, step.cumulative) == (
        "num_workers",
        "confirmed",
        result.speedup.estimate,
    )
    journal = (tmp_path / "run" / "journal.jsonl").read_text()
    assert '"kind":"build-up"' not in journal, "there is nothing to measure"


def test_process_knobs_come_last_and_dependents_after_what_they_need(tmp_path: Path) -> None:
    space = job_file(
        tmp_path,
        "{num_workers: [2], prefetch_factor: [4], amp_dtype: [bfloat16], malloc_arena: {via: env"
        " MALLOC_ARENA_MAX, values: [1, 2], default: 1, numerics: exact}}",
    ).search_space
    config = {"malloc_arena": 2, "prefetch_factor": 4, "amp_dtype": "bfloat16", "num_workers": 2}
    own = {"malloc_arena": 3.0, "prefetch_factor": 1.5, "amp_dtype": 1.2, "num_workers": 1.1}
    defaults = {"malloc_arena": 1, "prefetch_factor": 2, "amp_dtype": "off", "num_workers": 0}
    steps = prefixes(config, own, defaults, space)
    assert [s.name for s in steps] == [
        "amp_dtype",
        "num_workers",
        "prefetch_factor",
        "malloc_arena",
    ]
    assert dict(steps[-1].config) == config


def test_the_step_before_a_process_knob_is_the_whole_without_its_own_gain() -> None:
    gains = (
        KnobGain("a", 1, Interval(1.25, 1.2, 1.25**2 / 1.2), True),
        KnobGain("b", 1, None, True),
    )
    before = without_later(Interval(2.0, 1.9, 4 / 1.9), ["a"], gains)
    assert before is not None
    assert before.estimate == pytest.approx(1.6)
    assert math.log(before.high / before.estimate) == pytest.approx(
        math.hypot(math.log(2 / 1.9), math.log(1.25 / 1.2))
    )
    assert without_later(Interval(2.0, 1.9, 2.1), ["a", "b"], gains) is None, (
        "b was not measured alone"
    )


def test_steps_without_a_figure_go_together_with_the_next() -> None:
    found = [
        (Step("a", {"a": 1}), None, ""),
        (Step("b", {"a": 1, "b": 2}), Interval(1.5, 1.4, 1.6), "live"),
        (Step("c", {"a": 1, "b": 2, "c": 3}), Interval(2.0, 1.9, 2.1), "confirmed"),
    ]
    steps = joined(found)
    assert [(s.knob, s.together_with) for s in steps] == [("b", ("a",)), ("c", ())]


def test_live_steps_do_not_exceed_the_confirmed_figure() -> None:
    """The last knob would seem to lose what live figures show too much."""
    a, b = Step("a", {"a": 1}), Step("b", {"a": 1, "b": 1})
    c = Step("c", {"a": 1, "b": 1, "c": 1})
    found = [(a, around(math.log(1.6), 0.01), "live"), (b, around(math.log(2.0), 0.01), "live")]
    found.append((c, Interval(1.5, 1.4, 1.6), "fresh"))
    cut = cut_at_confirmed(found, Interval(1.5, 1.4, 1.6))
    assert [at.estimate for _, at, _ in cut if at] == [1.5, 1.5, 1.5]
    assert all(at.low <= at.estimate <= at.high for _, at, _ in cut if at)
    assert cut_at_confirmed(found, Interval(2.5, 2.4, 2.6)) == found


def test_own_gain_is_that_of_the_drop_before_that_of_the_trial() -> None:
    trials = (
        Trial(0, {"a": 1}, "complete", -math.log(1.4), 0.01, 2),
        Trial(1, {"b": 9}, "complete", -math.log(3), 0.01, 2),
    )
    own = own_gains(
        {"a": 1, "b": 2, "c": 3}, (KnobGain("c", 3, Interval(1.2, 1.1, 1.3), True),), trials
    )
    assert own == pytest.approx({"a": 1.4, "b": 1.0, "c": 1.2}), (
        "a trial of another value says nothing"
    )


DEFAULTS = {"num_workers": 0, "amp_dtype": "off", "intra_op_threads": 2}


def planted(count: int, spread: float = 0.01) -> list[Trial]:
    """num_workers explains most of the gain, amp_dtype some, intra_op_threads none."""
    found = []
    for n in range(count):
        config = {
            "num_workers": (0, 1, 2)[n % 3],
            "amp_dtype": ("off", "bfloat16")[n // 3 % 2],
            "intra_op_threads": (2, 1)[n // 2 % 2],
        }
        ratio = (
            -{0: 0.0, 1: 0.3, 2: 0.5}[n % 3]
            - (0.15 if config["amp_dtype"] != "off" else 0.0)
            + spread * math.sin(7.0 * n)
        )
        found.append(
            Trial(
                n, {k: v for k, v in config.items() if v != DEFAULTS[k]}, "complete", ratio, 0.01, 2
            )
        )
    return found


def test_importance_finds_what_was_planted() -> None:
    shares, why = importance(planted(12), DEFAULTS, noise=0.01)
    assert why == ""
    assert list(shares)[:2] == ["num_workers", "amp_dtype"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["num_workers"] > 0.6
    assert shares["intra_op_threads"] < 0.05
    assert importance(planted(12), DEFAULTS, noise=0.01)[0] == shares, (
        "the same trials give the same figures"
    )


def test_importance_is_not_claimed_from_few_trials_or_noise() -> None:
    shares, why = importance(planted(FEWEST_TRIALS - 1), DEFAULTS, noise=0.01)
    assert shares == {}
    assert "too few trials" in why
    shares, why = importance(planted(12), DEFAULTS, noise=0.5)
    assert shares == {}
    assert "noise" in why
