"""Faster or not: intervals cover the truth, no false wins, no over-claims, and a clear message if
the machine is too noisy.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tiers import slow

from autotune.results import Interval
from autotune.verdict.sequential import (
    BOUNDS,
    EARLY,
    LATE,
    boundary,
    critical_value,
    robust_mean,
    simulated_boundary,
    t_quantile,
)
from autotune.verdict.speedup import (
    ALPHA,
    FALSE_ADOPTIONS,
    LOOKS,
    SHARP_TAIL,
    UPPER_TAIL,
    decide,
    half_width,
    noise_of,
    planned,
    required_pairs,
    sharpened,
)


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_that_is_none_is_an_error(cost):
    with pytest.raises(ValueError, match="positive"):
        noise_of([1.0, cost])


def test_noise_does_not_depend_on_the_unit_of_time():
    seconds = list(0.01 * np.exp(np.random.default_rng(0).normal(0, 0.05, 8)))
    assert noise_of(seconds) == pytest.approx(noise_of([1e6 * c for c in seconds]))


def test_noise_is_what_remains_when_drift_is_removed():
    rng = np.random.default_rng(0)
    found = [noise_of(np.exp(0.1 * np.arange(8) + rng.normal(0, 0.02, 8))) ** 2 for _ in range(500)]
    assert math.sqrt(np.mean(found)) == pytest.approx(0.02, rel=0.08)
    assert noise_of([2.0, 2.0, 2.0]) == 0.0
    with pytest.raises(ValueError, match="two blocks"):
        noise_of([1.0])


def test_pairs_without_outliers_give_nearly_the_mean_and_its_error():
    values = np.random.default_rng(1).normal(0.1, 0.02, (400, 12))
    found = [robust_mean(list(row)) for row in values]
    assert np.std([mean for mean, _, _ in found]) == pytest.approx(0.02 / math.sqrt(12), rel=0.15)
    assert np.mean([error for _, error, _ in found]) == pytest.approx(
        0.02 / math.sqrt(12), rel=0.15
    )
    assert {freedom for _, _, freedom in found} == {11}


def test_degenerate_samples():
    assert robust_mean([0.3]) == (0.3, math.inf, 0)
    assert robust_mean([0.3] * 5) == pytest.approx((0.3, 0.0, 4))
    mean, error, _ = robust_mean([0.1, 0.2])
    assert mean == pytest.approx(0.15) and error == pytest.approx(0.05)
    with pytest.raises(ValueError, match="at least one"):
        robust_mean([])
    with pytest.raises(ValueError, match="5 values have 3 levels"):
        robust_mean([0.3] * 5, [0.0] * 3)


def test_the_mean_does_not_depend_on_order_origin_or_unit_and_turns_with_the_sign():
    values, levels = [0.1, -0.2, 0.05, 0.3, 0.02], [0.0, 0.1, -0.1, 0.9, 0.05]
    mean, error, _ = robust_mean(values, levels)
    for order in itertools.permutations(range(5)):
        assert robust_mean([values[i] for i in order], [levels[i] for i in order])[
            :2
        ] == pytest.approx((mean, error))
    assert robust_mean([-v for v in values], levels)[:2] == pytest.approx((-mean, error))
    assert robust_mean([v + 1 for v in values], [x - 7 for x in levels])[:2] == pytest.approx(
        (mean + 1, error)
    )
    assert robust_mean([3 * v for v in values], [3 * x for x in levels])[:2] == pytest.approx(
        (3 * mean, 3 * error)
    )


def test_a_pair_of_a_slow_moment_counts_less_and_equal_levels_count_nothing():
    values = [0.1, 0.112, 0.091, 0.103, 0.098, 0.121, 0.079, 0.105, 0.16]
    calm = [0.0, 0.01, -0.01, 0.005, -0.005, 0.0, 0.01, -0.01, 0.0]
    slow = [*calm[:-1], 0.5]
    assert abs(robust_mean(values, slow)[0] - 0.1) < abs(robust_mean(values, calm)[0] - 0.1)
    assert robust_mean(values, [2.0] * 9) == pytest.approx(robust_mean(values))


def test_levels_that_differ_by_next_to_nothing_weigh_as_equal_ones():
    values = [0.1, 0.11, 0.09, 0.1, 0.12]
    assert robust_mean(values, [0.0, 0.0, 0.0, 1e-9, 1e-9])[0] == pytest.approx(
        robust_mean(values)[0], abs=1e-6
    )


def test_bursts_that_show_in_the_levels_leave_a_narrower_interval_than_those_that_do_not():
    rng = np.random.default_rng(3)
    known, unknown = [], []
    for _ in range(200):
        sides = rng.normal(0, 0.05, (2, 16)) + np.where(
            rng.random((2, 16)) < 0.3, rng.uniform(0.2, 0.7, (2, 16)), 0
        )
        ratios = list(sides[0] - sides[1])
        known.append(robust_mean(ratios, list(sides.mean(axis=0)))[1])
        unknown.append(robust_mean(ratios)[1])
    assert np.mean(known) < 0.8 * np.mean(unknown)


@pytest.mark.parametrize("draw", ["normal", "bursts"])
@pytest.mark.parametrize("n", [LOOKS[0], *(slow(n) for n in LOOKS[1:-1]), LOOKS[-1]])
def test_coverage_at_each_look(n, draw):
    rng, bound = np.random.default_rng([n, len(draw)]), boundary((n,), 0.025)[0]
    covered = 0
    for _ in range(1000):
        values = rng.normal(0.1, 0.03, n)
        if draw == "bursts":  # a burst hits either side of a pair equally often
            values += (rng.random(n) < 0.15) * rng.choice([-1, 1], n) * 0.3
        mean, error, _ = robust_mean(list(values))
        covered += abs(mean - 0.1) <= bound * error
    assert 0.93 <= covered / 1000 <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("tail", "spending"), [(0.005, LATE), (0.02, EARLY)])
def test_the_bounds_of_all_looks_together_keep_the_level_and_use_it(tail, spending):
    bounds, rng, above = boundary(LOOKS, tail, spending), np.random.default_rng(20), 0
    for _ in range(2500):
        ratios, levels = list(rng.normal(0, 0.02, LOOKS[-1])), list(rng.normal(0, 0.01, LOOKS[-1]))
        found = [robust_mean(ratios[:n], levels[:n])[:2] for n in LOOKS]
        above += any(mean > c * error for c, (mean, error) in zip(bounds, found, strict=True))
        above += any(-mean > c * error for c, (mean, error) in zip(bounds, found, strict=True))
    assert above / 5000 == pytest.approx(tail, rel=0.35 if tail > 0.01 else 0.6)


@pytest.mark.parametrize("room", [5, slow(9), 24])
def test_the_bounds_that_are_kept_are_those_that_are_found(room):
    looks = planned(room)
    for tail in set(FALSE_ADOPTIONS):
        found, kept = simulated_boundary(looks, tail, 40_000, seed=5), BOUNDS[looks, tail, LATE]
        assert found[:2] == pytest.approx(kept[:2], rel=0.25), "the tail of few degrees of freedom"
        assert found[2:] == pytest.approx(kept[2:], rel=0.1)
    assert simulated_boundary(looks, UPPER_TAIL, 20_000, EARLY, seed=5) == pytest.approx(
        BOUNDS[looks, UPPER_TAIL, EARLY], rel=0.1
    )


def test_what_will_never_be_reached_is_not_planned_and_lowers_the_bar():
    assert planned(24) == LOOKS and planned(8.9) == (5, 7) and planned(0) == (5,)
    pairs = [0.4, 0.25, 0.3, 0.2, 0.35]
    assert decide(pairs, look=0).state == "continue"
    assert decide(pairs, look=0, looks=planned(5)).state == "adopt"


def test_all_that_a_run_may_confirm_share_the_risk():
    assert sum(FALSE_ADOPTIONS) == pytest.approx(0.01)
    assert max(FALSE_ADOPTIONS) + SHARP_TAIL + 2 * UPPER_TAIL <= ALPHA


def test_one_look_at_few_pairs_is_about_the_t_interval():
    assert boundary((5,), 0.025)[0] == pytest.approx(t_quantile(0.975, 4), rel=0.2)


@pytest.mark.slow
def test_looks_that_share_their_pairs_need_less_than_bonferroni_at_the_last():
    spent = (12 / 16) ** LATE
    assert boundary((12, 16), 0.025)[-1] < 0.98 * boundary((16,), 0.025 * (1 - spent))[0]


def test_pairs_that_were_not_planned_get_a_bound_of_their_own_number():
    assert critical_value(8, 1, LOOKS, 0.05) == boundary((8,), 0.05 / len(LOOKS))[0]
    assert critical_value(1, 0, LOOKS, 0.05) == math.inf


def confirm(draw, finalist=0, room=LOOKS[-1]):
    """The sequence of looks of the confirm stage, with time for ``room`` pairs."""
    looks = planned(room)
    ratios: list[float] = []
    for look, n in enumerate(looks):
        ratios += [draw(i) for i in range(len(ratios), n)]
        decision = decide(ratios, look=look, looks=looks, finalist=finalist)
        if decision.state != "continue":
            return decision
    raise AssertionError("the last look must decide")


def noisy(rng, truth, noise=0.03, drift=0.0, bursts=0.0):
    def draw(i):  # the direction alternates, so drift has alternating signs
        burst = rng.choice([-1, 1]) * 0.4 if rng.random() < bursts else 0.0
        return math.log(truth) + rng.normal(0, noise) + (-1) ** i * drift + burst

    return draw


@pytest.mark.parametrize(
    "machine", [{}, slow({"drift": 0.05}), {"bursts": 0.2}, slow({"noise": 0.1}), {"noise": 0.002}]
)
def test_equal_configurations_are_not_adopted(machine):
    rng = np.random.default_rng(7)
    adopted = sum(confirm(noisy(rng, 1.0, **machine)).state == "adopt" for _ in range(500))
    assert adopted / 500 <= 0.05


@pytest.mark.slow
def test_several_equal_finalists_share_the_risk():
    rng = np.random.default_rng(8)
    runs = 300
    adopted = sum(
        any(confirm(noisy(rng, 1.0), n).state == "adopt" for n in range(3)) for _ in range(runs)
    )
    assert adopted / runs <= 0.05


def test_a_clear_gain_is_adopted_early_covered_and_not_over_claimed():
    rng = np.random.default_rng(9)
    found = [confirm(noisy(rng, 1.15)) for _ in range(400)]
    assert np.mean([d.state == "adopt" for d in found]) > 0.95
    claims = [d.interval.estimate / 1.15 - 1 for d in found if d.state == "adopt"]
    assert np.mean(claims) <= 0.015
    assert np.quantile(claims, 0.95) <= 0.10
    assert np.mean([d.interval.low <= 1.15 <= d.interval.high for d in found]) >= 0.93


def test_what_barely_passes_claims_less_than_was_measured_and_what_is_certain_as_much():
    rng = np.random.default_rng(11)
    noise = rng.normal(0, 0.09, 12)
    mean, error, _ = robust_mean(list(noise))
    noisy_pairs = list(noise - mean + 1.02 * boundary(LOOKS, 0.005)[LOOKS.index(12)] * error)
    barely, sure = (
        decide(noisy_pairs, look=LOOKS.index(12)),
        decide([0.14, 0.141, 0.139, 0.1402, 0.1398], look=0),
    )
    assert barely.state == sure.state == "adopt"
    assert 1.02 < barely.interval.estimate < 0.995 * math.exp(robust_mean(noisy_pairs)[0])
    assert sure.interval.estimate == pytest.approx(math.exp(0.14), rel=1e-4)


def test_a_claim_is_inside_its_interval():
    rng = np.random.default_rng(12)
    found = [
        confirm(noisy(rng, 1.15, noise=n), f)
        for n in (0.01, 0.05, 0.1)
        for f in (0, 2)
        for _ in range(50)
    ]
    assert all(d.interval.low < d.interval.estimate < d.interval.high for d in found)


@pytest.mark.slow
def test_gains_on_a_machine_at_its_limit_are_not_over_claimed():
    rng = np.random.default_rng(13)
    found = [confirm(noisy(rng, 1.15, noise=0.08, bursts=0.2)) for _ in range(600)]
    claims = [d.interval.estimate / 1.15 - 1 for d in found if d.state == "adopt"]
    assert 100 < len(claims) < 560, "the noise is such that some pass and some do not"
    assert np.mean(claims) <= 0.015
    assert np.quantile(claims, 0.95) <= 0.10


def test_what_can_hardly_be_proven_any_more_ends_early():
    hopeless = decide([-0.08, 0.01, -0.07, 0.0, -0.06], look=0)
    assert hopeless.interval.high > 1.02, "the interval alone would leave it open"
    assert hopeless.state == "reject" and "no gain of 2% or more is shown" in hopeless.reason
    assert not hopeless.too_noisy
    ratios = [-1.0, 0.5, -0.8, 0.4, 0.8]
    wide = decide(ratios, look=0, looks=LOOKS[:1])
    assert wide.state == "reject" and wide.too_noisy
    assert wide.reason.startswith("too noisy to tell whether there is a gain of 2% or more: ")
    assert decide([0.05, 0.06, -0.02, 0.09, 0.01], look=0).state == "continue"


def very_noisy(rng, truth, pairs):
    """(ratios, levels) with bursts of 1.2 to 2 in a fifth of the processes, and 6% of scatter."""
    sides = rng.normal(0, 0.06, (2, pairs)) + np.where(
        rng.random((2, pairs)) < 0.2, rng.uniform(0.18, 0.7, (2, pairs)), 0
    )
    return list(math.log(truth) + sides[0] - sides[1]), list(sides.mean(axis=0))


def decided(ratios, levels, finalist=1):
    for look, n in enumerate(LOOKS):
        decision = decide(ratios[:n], look=look, levels=levels[:n], finalist=finalist)
        if decision.state != "continue":
            return decision, n
    raise AssertionError("the last look must decide")


@pytest.mark.slow
def test_on_a_very_noisy_machine_a_gain_is_found_and_nothing_is_not():
    rng = np.random.default_rng(19)
    found = [decided(*very_noisy(rng, 1.15, LOOKS[-1]))[0] for _ in range(300)]
    assert np.mean([d.state == "adopt" for d in found]) >= 0.8
    nothing = [decided(*very_noisy(rng, 1.0, LOOKS[-1])) for _ in range(300)]
    assert np.mean([d.state == "adopt" for d, _ in nothing]) <= 0.01
    assert np.mean([n for _, n in nothing]) < LOOKS[-1] / 2, (
        "what is hopeless is not carried to the last look"
    )


@pytest.mark.parametrize("gain", [1.15, 1.5])
def test_a_clear_gain_on_a_quiet_machine_is_adopted_at_the_first_look(gain):
    rng = np.random.default_rng(21)
    looks = [
        decided(
            list(math.log(gain) + rng.normal(0, 0.02, LOOKS[-1])),
            list(rng.normal(0, 0.01, LOOKS[-1])),
        )[1]
        for _ in range(200)
    ]
    assert np.mean([n == LOOKS[0] for n in looks]) > (0.99 if gain > 1.4 else 0.6)


def test_a_gain_too_small_to_be_worth_a_change_is_rejected_however_sure():
    decision = decide([0.010, 0.011, 0.0105, 0.0102, 0.0108], look=0)
    assert decision.state == "reject"
    assert "no gain of 2%" in decision.reason


def test_slower_ends_at_the_first_look():
    decision = decide([-0.1, -0.11, -0.1, -0.12, -0.09], look=0)
    assert decision.state == "reject"
    assert decision.reason.startswith("slower")
    assert decision.interval.high < 1


def test_adoption_needs_the_whole_interval_above_no_gain():
    assert decide([0.01, 0.2, -0.05, 0.15, 0.1], look=0).state == "continue"
    last = decide(
        [0.3, 0.6, -0.4, 0.5, -0.3, 0.4, 0.2, -0.1, 0.3, 0.5] * 2 + [0.3, 0.6, -0.4, 0.5],
        look=len(LOOKS) - 1,
    )
    assert last.state == "reject"
    assert last.too_noisy
    assert "too noisy" in last.reason
    assert last.required_pairs > LOOKS[-1]
    assert str(last.required_pairs) in last.reason


def test_the_pairs_it_would_take_are_more_than_there_are():
    for room in (5, 7, 9):
        pairs = [0.12, 0.25, 0.03, 0.2, 0.3, 0.02, 0.16, 0.28, 0.05][:room]
        scatter = 1.0
        while (found := decide(pairs, look=len(planned(room)) - 1, looks=planned(room))).state == (
            "adopt"
        ):
            scatter += 0.02
            pairs = [0.15 + (p - 0.15) * scatter for p in pairs]
        assert found.too_noisy and found.required_pairs in LOOKS and found.required_pairs > room


@pytest.mark.parametrize("room", [5, slow(7)])
@pytest.mark.parametrize("noise", [slow(0.02), 0.1, slow(0.2)])
def test_planning_for_what_the_budget_has_room_for_keeps_the_risk_and_the_interval(noise, room):
    rng = np.random.default_rng(17)
    for gain in (1.0, 1.1):
        found = [confirm(noisy(rng, gain, noise=noise), room=room) for _ in range(1000)]
        assert np.mean([d.interval.low <= gain <= d.interval.high for d in found]) >= 0.93
        if gain == 1.0:
            assert np.mean([d.state == "adopt" for d in found]) <= 0.01


def test_required_pairs_are_about_right():
    rng = np.random.default_rng(10)
    needed = required_pairs(list(rng.normal(0.05, 0.05, 200)), 0.02)
    errors = [robust_mean(list(rng.normal(0.05, 0.05, needed)))[1] for _ in range(300)]
    assert np.mean(errors) * t_quantile(0.975, needed - 1) == pytest.approx(0.02, rel=0.15)
    assert required_pairs([5.0, -5.0, 3.0], 1e-6) is None


@pytest.mark.parametrize(
    ("ratios", "look"), [([0.1], len(LOOKS)), ([0.1], -1), ([math.nan], 0), ([], 0)]
)
def test_bad_input_is_an_error(ratios, look):
    with pytest.raises(ValueError):
        decide(ratios, look=look)


def test_one_pair_decides_nothing():
    assert decide([2.0], look=0).state == "continue"


def adopted_then_sharpened(ratios, levels):
    """(interval at the adoption, after all pairs); None: not adopted."""
    decision, pairs = decided(ratios, levels)
    if decision.state != "adopt":
        return None
    interval = decision.interval
    for look, n in enumerate(LOOKS):
        if n > pairs:
            interval = sharpened(interval, ratios[:n], look=look, levels=levels[:n])
    return decision.interval, interval


@pytest.mark.parametrize("truth", [slow(1.06), 1.15])
def test_more_pairs_after_an_adoption_make_the_claim_narrower_and_keep_its_promise(truth):
    rng = np.random.default_rng(23)
    runs = [adopted_then_sharpened(*very_noisy(rng, truth, LOOKS[-1])) for _ in range(800)]
    first, last = zip(*[found for found in runs if found is not None], strict=True)
    assert len(last) > 30
    assert all(
        a.low <= b.low <= b.estimate <= b.high <= a.high for a, b in zip(first, last, strict=True)
    )
    assert np.mean([half_width(b) for b in last]) < 0.9 * np.mean([half_width(a) for a in first])
    assert np.mean([b.low <= truth <= b.high for b in last]) >= 0.93
    claims, earlier = (
        [interval.estimate / truth - 1 for interval in found] for found in (last, first)
    )
    assert np.mean(claims) <= max(0.015, np.mean(earlier)), (
        "of what hardly passes, only the lucky ones do"
    )
    assert np.mean([abs(b.estimate / truth - 1) for b in last]) <= np.mean(
        [abs(a.estimate / truth - 1) for a in first]
    )


def test_a_gain_that_later_pairs_do_not_show_is_estimated_at_its_lower_end():
    adopted = Interval(1.03, 1.006, 1.06)
    later = [-0.002 + 0.03 * (-1) ** i for i in range(24)]
    found = sharpened(adopted, later, look=1)
    assert found.low <= found.estimate < (found.low + found.high) / 2


def test_looks_that_contradict_each_other_leave_the_adopted_interval():
    adopted = Interval(1.5, 1.45, 1.55)
    slower = [math.log(1.1) + 0.001 * i for i in range(7)]
    assert sharpened(adopted, slower, look=1) == adopted


@pytest.mark.parametrize(("period", "slow_by"), [(3, 0.233), (4, 0.3)])
def test_a_candidate_slow_in_some_of_its_own_processes_is_not_faster(
    period: int, slow_by: float
) -> None:
    """It is 10% faster in the others, and gains nothing or less on average."""
    rng = np.random.default_rng(3)
    adopted, reasons = [], []
    for _ in range(60):
        baseline = rng.normal(0, 0.01, LOOKS[-1])
        slow = np.arange(LOOKS[-1]) % period == 1
        candidate = rng.normal(0, 0.01, LOOKS[-1]) + np.where(slow, slow_by, -0.10)
        ratios, levels = baseline - candidate, (baseline + candidate) / 2
        for look, n in enumerate(LOOKS):
            decision = decide(ratios[:n].tolist(), look=look, levels=levels[:n].tolist())
            if decision.state != "continue":
                break
        adopted.append(decision.state == "adopt")
        reasons.append(decision.reason)
    assert sum(adopted) == 0
    assert period == 3 or any("the mean of all pairs is" in reason for reason in reasons)


def test_a_candidate_that_differs_more_from_process_to_process_is_not_favored() -> None:
    """Its slow processes raise a pair's level as well: weighting by that left them out (5%)."""
    rng, adopted = np.random.default_rng(11), 0
    for _ in range(300):
        machine = rng.normal(0, 0.01, LOOKS[-1])
        baseline = machine + rng.normal(0, 0.013, LOOKS[-1])
        candidate = machine + rng.normal(0, 0.05, LOOKS[-1])
        ratios, levels = baseline - candidate, (baseline + candidate) / 2
        for look, n in enumerate(LOOKS):
            decision = decide(ratios[:n].tolist(), look=look, levels=levels[:n].tolist())
            if decision.state != "continue":
                break
        adopted += decision.state == "adopt"
    assert adopted <= 5
