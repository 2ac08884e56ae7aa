"""The job's own metrics are judged like its loss; gradients are compared by their sketches."""

from __future__ import annotations

import math
import random

import pytest

from autotune.verdict.equivalence import Differences, judge
from autotune.verdict.gradients import relative_error
from autotune.verdict.metrics import at_same_samples, compare_metric

LOOKS = (3, 5, 8, 12)


def runs(
    seeds: int, values: int, *, factor: float = 1.0, noise: float = 0.003, side: int = 0
) -> dict[int, list[float]]:
    """Accuracies that rise from 0.3 to 0.8, with noise that differs by seed."""
    found = {}
    for seed in range(seeds):
        own = random.Random(f"{seed} {side}")
        course = [0.8 - 0.5 * math.exp(-i / 3) for i in range(values)]
        found[seed] = [factor * x * (1 + own.gauss(0, noise)) for x in course]
    return found


def verdict(baselines, candidates, tolerance=0.02):
    return compare_metric("acc", baselines, candidates, tolerance=tolerance, looks=LOOKS)


@pytest.mark.parametrize("values", [1, 3, 8, 40])
def test_the_same_within_noise_is_unchanged_and_a_planted_loss_of_a_tenth_is_changed(values):
    baselines = runs(8, values)
    assert verdict(baselines, runs(8, values, side=1)).verdict == "unchanged"
    worse = verdict(baselines, runs(8, values, factor=0.9, side=1))
    assert worse.verdict == "changed"
    assert worse.largest_difference < -worse.margin < 0


def learned(batch, steps, speed=1.0):
    """(values, samples before) of an accuracy that rises with the samples seen."""
    at = [float(batch * i) for i in range(steps)]
    return [0.8 - 0.5 * math.exp(-speed * n / 3000) for n in at], at


@pytest.mark.parametrize(("speed", "state"), [(1.0, "unchanged"), (0.25, "changed")])
def test_with_another_batch_size_values_are_matched_by_samples(speed, state):
    """By their order, four times the batch would look as if it learned four times as fast."""
    pair = at_same_samples(*learned(32, 240), *learned(128, 240, speed))
    assert len(pair[0]) == len(pair[1]) == 240
    found = verdict(*(dict.fromkeys(range(4), side) for side in pair))
    assert found.verdict == state
    back = at_same_samples(*learned(128, 240, speed), *learned(32, 240))
    assert len(back[0]) == len(back[1]) == 60


def test_values_without_positions_are_not_matched_by_samples():
    values, at = learned(32, 8)
    assert at_same_samples(values, (), values, ()) == ([], [])
    assert at_same_samples(values[:1], at[:1], values[:1], at[:1]) == (values[:1], values[:1])
    assert at_same_samples(values, at, values, [n + 1e6 for n in at]) == ([], [])


def test_too_few_pairs_decide_nothing():
    assert verdict(runs(2, 4), runs(2, 4, side=1)).verdict == "undecided"


def test_the_same_bits_are_unchanged_with_one_pair():
    assert verdict(runs(4, 4), runs(1, 4)).verdict == "unchanged"


def test_a_value_that_is_not_finite_is_changed_only_in_the_candidate():
    baselines, broken = runs(4, 4), runs(4, 4)
    broken[2][1] = math.nan
    assert verdict(baselines, broken).verdict == "changed"
    assert verdict(broken, baselines).verdict == "not-judged"


@pytest.mark.parametrize(
    ("baselines", "candidates", "why"),
    [
        ({0: [], 1: []}, {0: [], 1: []}, "did not report"),
        ({0: [0.1], 1: [0.2]}, {0: [], 1: [0.2]}, "not every run"),
        ({0: [0.1, 0.1], 1: [0.1, 0.1]}, {0: [0.1, 0.2], 1: [0.1, 0.1]}, "stays at 0.1"),
    ],
)
def test_what_cannot_be_judged_says_why(baselines, candidates, why):
    found = verdict(baselines, candidates)
    assert found.verdict == "not-judged"
    assert why in found.reason


def test_judgement_of_planted_differences():
    inside, outside = [[0.1, -0.1], [0.0, 0.1], [0.1, 0.0]], [[0.1, 3.0], [0.0, 3.1], [0.1, 2.9]]
    assert judge(Differences(inside), looks=(3,)).state == "unchanged"
    assert judge(Differences(inside), looks=(4,)).state == "undecided"
    found = judge(Differences(outside), looks=(3,))
    assert (found.state, found.bin) == ("changed", 1)
    assert found.mean == pytest.approx(3.0)
    assert judge(Differences(inside, [4.0, 4.0]), looks=(3,)).state == "undecided", (
        "known scatter is not hidden"
    )


def test_a_sketch_tells_the_error_of_a_gradient():
    draw = random.Random(1)
    exact = [draw.gauss(0, 1) for _ in range(1024)]
    off = [x + draw.gauss(0, 0.01) for x in exact]
    assert relative_error(exact, off) == pytest.approx(0.01, rel=0.1)
    assert relative_error(exact, exact) == 0
    assert relative_error((), off) is None
    assert relative_error(exact, off[:5]) is None
    assert relative_error(exact, [math.inf, *off[1:]]) is None
    assert relative_error([0.0], [1.0]) is None
