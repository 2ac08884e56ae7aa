"""The build-up of the gain: steps from the baseline to the confirmed figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, run, table
from replayed import job as job_file

from autotune.explain.importance import FEWEST_TRIALS, importance
from autotune.results import Confirmation, Interval, KnobGain, Result, Trial
from autotune.stages.decisions.build_up import build_up, by_gain, without

THREE = "{num_workers: [2], amp_dtype: [bfloat16], optimizer_impl: [fused]}"


def explained(folder: Path, factors: Mapping[str, Mapping[str, float]] | None = None) -> Result:
    spec = replace(job_file(folder, THREE), traces="finalists")
    return run(folder, Machine(table(loss=Loss(), factors=factors)), spec)


def test_steps_lead_from_the_baseline_to_the_confirmed_figure(tmp_path: Path) -> None:
    result = explained(tmp_path)
    steps = result.explanation.build_up
    assert [step.knob for step in steps] == ["amp_dtype", "num_workers", "optimizer_impl"], (
        "the biggest own gain first"
    )
    assert [step.source for step in steps] == ["own gains", "own gains", "confirmed"]
    planted = [1 / 0.6, 1 / (0.6 * 0.7), 1 / (0.6 * 0.7 * 0.9)]
    for step, truth in zip(steps, planted, strict=True):
        assert step.cumulative == pytest.approx(truth, rel=0.05)
        assert step.low < step.cumulative < step.high
    assert (steps[-1].cumulative, steps[-1].low, steps[-1].high) == (
        result.speedup.estimate,
        result.speedup.low,
        result.speedup.high,
    )


def test_a_kept_baseline_has_no_build_up(tmp_path: Path) -> None:
    result = explained(tmp_path, factors={})
    assert result.verdict == "keep-baseline"
    assert result.explanation.build_up == ()


def test_dependents_come_after_what_they_need(tmp_path: Path) -> None:
    space = job_file(
        tmp_path, "{num_workers: [2], prefetch_factor: [4], amp_dtype: [bfloat16]}"
    ).search_space
    config = {"prefetch_factor": 4, "amp_dtype": "bfloat16", "num_workers": 2}
    own = {"prefetch_factor": 1.5, "amp_dtype": 1.2, "num_workers": 1.1}
    defaults = {"prefetch_factor": 2, "amp_dtype": "off", "num_workers": 0}
    names = by_gain(config, own, defaults, space)
    assert names == ["amp_dtype", "num_workers", "prefetch_factor"]


def test_the_step_before_a_knob_is_the_whole_without_its_own_gain() -> None:
    before = without(Interval(2.0, 1.9, 4 / 1.9), [Interval(1.25, 1.2, 1.25**2 / 1.2)])
    assert before is not None
    assert before.estimate == pytest.approx(1.6)
    assert math.log(before.high / before.estimate) == pytest.approx(
        math.hypot(math.log(2 / 1.9), math.log(1.25 / 1.2))
    )


def test_steps_without_a_figure_go_together_with_the_next(tmp_path: Path) -> None:
    space = job_file(tmp_path, THREE).search_space
    config = {"num_workers": 2, "amp_dtype": "bfloat16", "optimizer_impl": "fused"}
    defaults = {"num_workers": 0, "amp_dtype": "off", "optimizer_impl": "default"}
    confirmation = Confirmation(config, Interval(2.0, 1.9, 2.1), 5, True, "")
    gains = [
        KnobGain("num_workers", 2, Interval(1.5, 1.4, 1.6), True),
        KnobGain("optimizer_impl", "fused", Interval(0.9, 0.8, 1.0), True),
    ]
    steps = build_up(confirmation, gains, defaults, space)
    assert [(s.knob, s.together_with) for s in steps] == [
        ("amp_dtype", ("num_workers",)),
        ("optimizer_impl", ()),
    ]


def test_own_gains_beyond_the_confirmed_figure_are_shares_of_it(tmp_path: Path) -> None:
    """A running job may show more than fresh processes do."""
    space = job_file(tmp_path, THREE).search_space
    config = {"num_workers": 2, "amp_dtype": "bfloat16", "optimizer_impl": "fused"}
    defaults = {"num_workers": 0, "amp_dtype": "off", "optimizer_impl": "default"}
    confirmation = Confirmation(config, Interval(1.5, 1.4, 1.6), 5, True, "")
    own = {"amp_dtype": 1.5, "num_workers": 1.4, "optimizer_impl": 1.3}
    gains = [KnobGain(n, config[n], Interval(g, g / 1.05, g * 1.05), True) for n, g in own.items()]
    steps = [step.cumulative for step in build_up(confirmation, gains, defaults, space)]
    assert 1 < steps[0] < steps[1] < steps[2] == 1.5


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
