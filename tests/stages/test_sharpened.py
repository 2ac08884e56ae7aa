"""Time left after an adoption is spent on narrowing its interval, if that is wide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from replay import Loss
from replayed import Machine, job, run, table

from autotune.results import Result
from autotune.verdict.speedup import LOOKS, SHARP, half_width

TRUTH = 1 / 0.5


def tuned(folder: Path, noise: float, clock: Callable[[float], float] | None = None) -> Result:
    machine = Machine(table(Loss(), factors={"optimizer_impl": {"fused": 0.5}}, block_noise=noise))
    result = run(folder, machine, job(folder, "{optimizer_impl: [fused]}"), clock)
    assert result.verdict == "tuned" and result.confirmation is not None
    assert result.speedup.low < TRUTH < result.speedup.high
    assert len(machine.confirmed()) >= 2 * result.confirmation.pairs
    return result


def test_a_wide_interval_is_given_more_pairs(tmp_path: Path) -> None:
    result = tuned(tmp_path, noise=0.05)
    assert result.confirmation is not None
    assert result.confirmation.pairs > LOOKS[0]
    assert half_width(result.speedup) <= SHARP or result.confirmation.pairs == LOOKS[-1]
    assert f"{result.confirmation.pairs} pairs" in result.confirmation.reason


def test_a_narrow_one_is_left_as_it_is(tmp_path: Path) -> None:
    result = tuned(tmp_path, noise=0.004)
    assert result.confirmation is not None
    assert result.confirmation.pairs == LOOKS[0]
