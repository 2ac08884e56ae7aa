"""The verdict on two speeds, with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.verdict.difference import LOOKS, difference


def judged(true: float, noise: float, seed: int, looks: int = len(LOOKS)) -> str:
    """The final state for pairs with a log speed-up of ``true``, with the looks of a run."""
    ratios = np.random.default_rng(seed).normal(true, noise, LOOKS[-1])
    for look in range(looks):
        found = difference(list(ratios[: LOOKS[look]]), look=look)
        if found.state != "open":
            return found.state
    return "open"


def share(states: list[str], *wanted: str) -> float:
    return sum(state in wanted for state in states) / len(states)


def test_equal_sides_are_called_different_in_at_most_one_of_a_hundred() -> None:
    states = [judged(0.0, 0.08, seed) for seed in range(600)]  # too noisy for "same" to come first
    assert share(states, "faster", "slower") <= 0.015  # 9 of 600; at most 6 are expected


def test_a_slowdown_of_five_per_cent_is_found() -> None:
    states = [judged(math.log(0.95), 0.04, seed, looks=7) for seed in range(200)]  # 21 pairs
    assert share(states, "slower") >= 0.9


def test_same_is_a_claim_of_its_own() -> None:
    assert share([judged(0.0, 0.02, seed) for seed in range(200)], "same") >= 0.9
    unlike = [judged(math.log(1.03), 0.03, seed) for seed in range(200)]
    assert share(unlike, "same") <= 0.025
    assert difference([0.0, 0.001, -0.001, 0.0, 0.0], look=0).state == "same"


def test_the_interval_holds_the_truth() -> None:
    inside = 0
    for seed in range(300):
        ratios = np.random.default_rng(seed).normal(0.1, 0.1, LOOKS[4])
        it = difference(list(ratios), look=4).interval
        inside += it.low <= math.exp(0.1) <= it.high
    assert inside >= 0.95 * 300


@pytest.mark.parametrize(("ratios", "look"), [([0.1], 0), ([0.1, math.nan], 0), ([0.1, 0.2], 10)])
def test_what_cannot_be_judged(ratios: list[float], look: int) -> None:
    with pytest.raises(ValueError):
        difference(ratios, look=look)


def test_slow_processes_of_its_own_are_not_forgiven() -> None:
    """They are taken for times at which the machine was slow, and count less."""
    ratios = [math.log(1.05)] * 5 + [math.log(0.75)] * 2
    levels = [0.001, -0.001, 0.002, -0.002, 0.0, 0.17, 0.17]
    assert difference(ratios, look=1, levels=levels).state == "open"
    equal = [0.001, -0.001, 0.0, 0.001, -0.001, *[math.log(1 / 1.3)] * 2]
    assert difference(equal, look=1, levels=levels).state == "open"
