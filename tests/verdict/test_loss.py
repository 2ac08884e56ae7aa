"""Loss unchanged or not: planted differences are found, harmless ones pass, and runs that prove
nothing say so.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from planted_losses import STEPS, run, side

from autotune.results import LossVerdict
from autotune.verdict.equivalence import standard_errors
from autotune.verdict.loss import RULES, compare, next_look
from autotune.verdict.probe import float16_fault
from autotune.verdict.runs import LossRun, bin_integrals, curve, loss_run
from autotune.verdict.words import certificate
from autotune_trials.protocol.messages import Record, Window


def verdict(numerics="rounding", first=0, plan=None, baseline=None, **candidate):
    """Take looks one after the other, as in the converge stage."""
    baseline = baseline or {}
    n = next_look(1, numerics)
    while True:
        decision = compare(
            side(range(first, first + max(n, 4)), **baseline),
            side(range(first, first + n), side=1, **candidate),
            numerics,
        )
        if decision.state != "more-pairs":
            return decision
        n = next_look(n, numerics)


def share(state, numerics="rounding", runs=40, start=0, **candidate):
    found = [verdict(numerics, start + 20 * i, **candidate) for i in range(runs)]
    return np.mean([d.state == state for d in found]), np.median([d.pairs for d in found])


def changed(runs, **fields):
    return {seed: replace(r, **fields) for seed, r in runs.items()}


def mapped(runs, function):
    return {
        seed: replace(r, losses=tuple(function(x) for x in r.losses)) for seed, r in runs.items()
    }


# --- planted differences --------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", [1e-6, 0.002, 0.008])
def test_harmless_rounding_is_unchanged_with_two_pairs(rounding):
    unchanged, pairs = share("unchanged", rounding=rounding)
    assert unchanged >= 0.95
    assert pairs <= 2


@pytest.mark.parametrize(
    "planted", [{"speed": 2.0}, {"speed": 0.5}, {"speed": 0.85}, {"shift": 0.06}, {"shift": -0.06}]
)
def test_a_planted_difference_is_changed(planted):
    assert share("changed", rounding=0.004, **planted)[0] >= 0.95


def test_what_rounding_does_to_a_chaotic_job_is_no_change():
    """It ends up anywhere, as another seed would."""
    drift = {"rounding": 0.2}
    found = [verdict(first=20 * i, baseline=drift, **drift) for i in range(40)]
    seen = [d.chaotic and d.state == "undecided" and d.pairs <= 6 for d in found]
    assert np.mean(seen) >= 0.9
    assert sum(d.state == "changed" for d in found) <= 2


def test_an_effect_of_one_and_a_half_margins_is_hardly_ever_accepted():
    """The margin is estimated from four seeds; plant 1.5 times the margin of each comparison."""
    accepted = 0
    for i in range(60):
        baselines = side(range(20 * i, 20 * i + 4))
        margin = compare(baselines, side(range(20 * i, 20 * i + 2), side=1), "rounding").margin
        found = compare(
            baselines,
            side(range(20 * i, 20 * i + 2), side=1, shift=1.5 * margin, rounding=0.008),
            "rounding",
        )
        accepted += found.state == "unchanged"
    assert accepted / 60 <= 0.05


def test_a_noisy_candidate_asks_for_pairs_instead_of_being_believed():
    baselines = side(range(4))
    decision = compare(baselines, side(range(2), side=1, own_noise=0.5), "rounding")
    assert decision.state == "more-pairs"
    assert "the next look is at 3 pairs" in decision.reason
    assert (
        compare(baselines, side(range(2), side=1, own_noise=0.5), "rounding", last_look=True).state
        == "undecided"
    )


def test_another_dropout_stream_is_never_called_changed():
    decided = [verdict("random-stream", 20 * i, own_noise=0.1, norm_noise=0.15) for i in range(40)]
    assert not [d.reason for d in decided if d.state == "changed"]
    assert np.mean([d.state == "undecided" for d in decided]) <= 0.15


def test_a_difference_under_another_random_stream_is_still_found():
    assert share("changed", "random-stream", own_noise=0.1, norm_noise=0.15, speed=0.5)[0] >= 0.95


def test_equal_up_to_one_bin_only_is_not_unchanged():
    late = side(range(4), side=1)
    late = {
        s: replace(r, losses=tuple(x + (0.3 if i >= 200 else 0) for i, x in enumerate(r.losses)))
        for s, r in late.items()
    }
    decision = compare(side(range(4)), late, "rounding")
    assert decision.state == "changed"
    assert "part 6 of 6" in decision.reason
    assert abs(decision.largest_difference) > decision.margin


# --- the probe ------------------------------------------------------------------------------------


def test_a_stale_gradient_shows_in_the_probe_and_not_in_the_loss():
    assert share("changed", norm_lag=1)[0] >= 0.95
    decision = verdict(norm_lag=1)
    assert "gradient norm" in decision.reason


@pytest.mark.parametrize(
    ("factor", "state"),
    [(0.25, "changed"), (0.9, "changed"), (1.1, "changed"), (1.02, "unchanged")],
)
def test_a_scaled_gradient_norm(factor, state):
    assert verdict(norm_factor=factor).state == state


def test_the_probe_allows_scatter_under_another_stream_but_no_shift():
    assert verdict("random-stream", norm_noise=0.2).state == "unchanged"
    assert verdict("random-stream", norm_noise=0.05, norm_factor=1.3).state == "changed"


def test_a_step_that_updates_nothing_is_seen():
    runs = side(range(2), side=1)
    runs = {
        s: replace(r, update_norms=(*r.update_norms[:3], 0.0, *r.update_norms[4:]))
        for s, r in runs.items()
    }
    decision = compare(side(range(4)), runs, "rounding")
    assert decision.state == "changed"
    assert "step 4" in decision.reason


def test_without_norms_only_the_loss_is_compared():
    bare = {"gradient_norms": (), "update_norms": ()}
    assert (
        compare(changed(side(range(4)), **bare), side(range(2), side=1), "rounding").state
        == "unchanged"
    )


# --- exact ----------------------------------------------------------------------------------------


def test_the_same_bits_in_one_run_are_unchanged():
    decision = compare(side(range(1)), side(range(1)), "exact", baseline_repeat=run(0))
    assert (decision.state, decision.pairs, decision.margin, decision.numerics_used) == (
        "unchanged",
        1,
        0.0,
        "exact",
    )


def test_a_mismatch_demotes_and_does_not_reject():
    one = compare(side(range(1)), side(range(1), side=1), "exact", baseline_repeat=run(0))
    assert one.state == "more-pairs"
    assert one.numerics_used == "random-stream"
    three = compare(side(range(4)), side(range(3), side=1), "exact", baseline_repeat=run(0))
    assert three.state == "unchanged"
    assert three.pairs == 3
    assert (
        compare(
            side(range(4)), side(range(3), side=1, speed=0.5), "exact", baseline_repeat=run(0)
        ).state
        == "changed"
    )


def test_one_last_bit_is_a_mismatch():
    runs = side(range(1))
    losses = list(runs[0].losses)
    losses[15] = math.nextafter(losses[15], 9)
    assert (
        compare(runs, {0: replace(runs[0], losses=losses)}, "exact").numerics_used
        == "random-stream"
    )


def test_a_job_that_never_repeats_its_bits_is_compared_as_rounding():
    decision = compare(
        side(range(4)),
        side(range(2), side=1),
        "exact",
        baseline_repeat=run(0, side=5, rounding=1e-5),
    )
    assert (decision.numerics_used, decision.state) == ("rounding", "unchanged")


def test_exact_asks_for_one_pair_first_and_demoted_for_more():
    assert next_look(0, "exact") == 1
    assert [next_look(n, "exact") for n in (1, 3, 12)] == [3, 5, None]
    assert [next_look(n, "rounding") for n in (0, 2, 4, 8)] == [2, 3, 6, None]
    assert [next_look(n, "statistical") for n in (0, 5, 8, 12)] == [3, 8, 12, None]


# --- another batch size ---------------------------------------------------------------------------


def batches(factor, seeds, speed):
    return side(seeds, side=1, batch=32 * factor, steps=480 // factor, speed=speed)


@pytest.mark.parametrize("factor", [4, 8])
def test_a_larger_batch_without_its_lr_is_changed(factor):
    states = []
    for i in range(20):
        seeds = range(20 * i, 20 * i + 5)
        # a step of the larger batch learns as much as one of the small batch: per sample, learning
        # is slower by the factor
        found = compare(
            side(seeds, steps=480),
            batches(factor, range(20 * i, 20 * i + 3), 1 / factor),
            "statistical",
        )
        states.append(found.state)
    assert states.count("changed") / len(states) >= 0.95


@pytest.mark.parametrize("factor", [4, 8])
def test_a_larger_batch_that_learns_as_fast_by_the_sample_is_unchanged(factor):
    decision = compare(side(range(5), steps=480), batches(factor, range(5), 1.0), "statistical")
    assert decision.state == "unchanged"


def warming_up(batch, learns, steps=240):
    """Nothing is learned from the first 8,000 samples."""
    at = np.arange(steps) * float(batch)
    losses = 2.3 - learns * 1.4 * np.clip((at - 8000) / 7000, 0, 1) + 0.01 * np.sin(at)
    return LossRun(tuple(losses), tuple(at))


def test_only_steps_over_the_same_samples_count():
    """240 steps of half the batch cover half the samples: where the job learns is not among them."""
    baselines = {seed: warming_up(64, True) for seed in range(5)}
    for batch in (32, 64):
        candidates = {seed: warming_up(batch, False) for seed in range(5)}
        decision = compare(baselines, candidates, "statistical", steps=240)
        assert decision.state == ("no-proof" if batch == 32 else "changed")
    assert (
        "120 and 240 steps over the same samples"
        in compare(
            baselines, {s: warming_up(32, True) for s in range(5)}, "statistical", steps=240
        ).reason
    )


def test_too_few_steps_of_a_large_batch_prove_nothing():
    decision = compare(side(range(4)), batches(32, range(4), 1.0), "statistical")
    assert decision.state == "no-proof"
    assert "the candidate 30" in decision.reason


def test_another_batch_size_that_no_knob_declared_is_changed():
    decision = compare(side(range(4), steps=480), batches(2, range(4), 1.0), "rounding")
    assert decision.state == "changed"
    assert "batches" in decision.reason


def test_a_bins_mean_over_samples_does_not_depend_on_how_finely_it_was_sampled():
    def falling(step):
        at = np.arange(0, 9601, step, dtype=float)
        return LossRun(tuple(2 * np.exp(-at / 3000)), tuple(at))

    edges = [0.0, 4800.0, 9600.0]
    assert bin_integrals(falling(32), edges) == pytest.approx(
        bin_integrals(falling(320), edges), rel=2e-3
    )


def test_a_bins_mean_is_exact_for_a_straight_line_also_between_steps():
    at = tuple(float(x) for x in range(0, 100, 10))
    line = LossRun(tuple(5 - 0.02 * x for x in at), at)
    assert bin_integrals(line, [3.0, 17.0, 84.0]) == pytest.approx([5 - 0.02 * 10, 5 - 0.02 * 50.5])


# --- margins and errors ---------------------------------------------------------------------------


def curves(offset, seeds=4):
    """The same curve for every seed, except for an ``offset`` (seed, step) -> factor; seeds differ
    by one ten-thousandth.
    """
    trend = 0.6 + 1.7 * np.exp(-np.arange(STEPS) / 80)
    made = {}
    for seed in range(seeds):
        factors = np.array([offset(seed, i) for i in range(STEPS)]) * (1 + 1e-4 * seed)
        made[seed] = replace(run(0), losses=tuple(map(float, trend * factors)))
    return made


def test_only_the_first_half_has_twice_the_margin_under_another_random_stream():
    baselines = curves(lambda seed, i: 1.0)
    early = curves(lambda seed, i: 1.03 if i < STEPS // 2 else 1.0)
    late = curves(lambda seed, i: 1.03 if i >= STEPS // 2 else 1.0)
    assert compare(baselines, early, "random-stream").state == "unchanged"
    assert compare(baselines, late, "random-stream").state == "changed"


def test_the_margin_is_the_tolerance_where_seeds_agree_and_never_more_than_a_tenth_of_the_progress():
    agree = compare(curves(lambda seed, i: 1.0), curves(lambda seed, i: 1.001), "rounding")
    assert agree.state == "unchanged"
    assert 0.01 * 0.6 < agree.margin < 0.01 * 2.3
    spread = [0.5, 0.8, 1.2, 1.5]
    apart = compare(
        curves(lambda seed, i: spread[seed]),
        curves(lambda seed, i: spread[seed] * 1.001),
        "rounding",
    )
    assert 0.05 < apart.margin < 0.1 * 1.7  # the seeds' own spread would be 0.3 to 1


def test_variances_are_shrunk_to_the_pooled_one_and_never_below_the_scatter_of_steps():
    errors, freedom = standard_errors([[0.0, 1.0], [2.0, 1.0]], [0.0, 0.0])
    assert errors == pytest.approx([math.sqrt((2 + 4) / 5 / 2), math.sqrt(4 / 5 / 2)])
    assert freedom == 5
    assert standard_errors([[0.0], [0.0]], [0.5])[0] == pytest.approx([0.5])


def test_two_pairs_that_scatter_more_than_the_margin_are_never_unchanged():
    states = {
        compare(
            side(range(20 * i, 20 * i + 4)),
            side(range(20 * i, 20 * i + 2), side=1, own_noise=0.4),
            "rounding",
        ).state
        for i in range(20)
    }
    assert "unchanged" not in states


def test_pairs_that_agree_by_chance_do_not_hide_the_scatter_of_single_steps():
    shaken = curves(lambda seed, i: 1.5 if i % 2 else 0.5, seeds=2)
    assert compare(curves(lambda seed, i: 1.0), shaken, "rounding").state == "more-pairs"


def test_a_noisy_loss_that_moves_is_told_from_one_that_does_not():
    noisy = {"batch_noise": 0.6}
    assert (
        compare(side(range(4), **noisy), side(range(2), side=1, **noisy), "rounding").state
        == "unchanged"
    )


# --- what proves nothing --------------------------------------------------------------------------


def flat(level=math.log(32), noise=0.0):
    def at(seed):
        rng = np.random.default_rng([seed, 9])
        return replace(run(seed), losses=tuple(map(float, level + noise * rng.normal(size=STEPS))))

    return {seed: at(seed) for seed in range(4)}


@pytest.mark.parametrize("numerics", ["exact", *RULES])
def test_a_constant_loss_proves_nothing(numerics):
    norms = {"gradient_norms": (), "update_norms": ()}
    decision = compare(changed(flat(), **norms), changed(flat(), **norms), numerics)
    assert decision.state == "no-proof"
    assert "stays at 3.466" in decision.reason
    assert "placeholder data" in decision.reason and "Tune on real data" in decision.reason, (
        "cause and remedy"
    )


@pytest.mark.parametrize("level", [math.log(32), 0.0, -5.0])
def test_a_loss_that_is_only_noise_proves_nothing(level):
    decision = compare(
        flat(level, 0.05), mapped(flat(level, 0.05), lambda x: x * 1.0001 + 1e-6), "rounding"
    )
    assert decision.state == "no-proof"
    assert "does not move beyond its noise" in decision.reason


def test_a_loss_that_moves_less_than_the_margin_proves_nothing():
    slow = {"start": 2.30, "end": 2.285, "batch_noise": 0.0005}
    decision = compare(
        side(range(4), **slow), side(range(2), side=1, rounding=1e-6, **slow), "rounding"
    )
    assert decision.state == "no-proof"
    assert "too little for a model that learns less" in decision.reason


def test_a_baseline_that_is_not_finite_proves_nothing():
    runs = side(range(4))
    nan = {
        **runs,
        2: replace(runs[2], losses=(*runs[2].losses[:50], math.nan, *runs[2].losses[51:])),
    }
    decision = compare(nan, side(range(2), side=1), "rounding")
    assert decision.state == "no-proof"
    assert "step 51" in decision.reason


def test_what_is_not_finite_beyond_the_compared_steps_counts_for_the_candidate_alone():
    """Windows are lengthened for the timing, beyond the steps of the loss check."""
    late = changed(side(range(4)), non_finite_at=299)
    own, other = compare(late, side(range(2), side=1), "rounding", steps=240), late
    assert own.state == "unchanged"
    longer = side(range(4), steps=320)
    decision = compare(longer, {s: other[s] for s in (0, 1)}, "rounding", steps=240)
    assert decision.state == "changed" and "step 300" in decision.reason
    assert compare(late, {s: late[s] for s in (0, 1)}, "rounding", steps=240).state == "unchanged"
    later = changed({s: other[s] for s in (0, 1)}, non_finite_at=450)
    assert compare(side(range(4)), later, "rounding", steps=240).state == "unchanged", (
        "the baseline's record ends before"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("numerics", ["exact", *RULES])
def test_a_candidate_that_is_not_finite_is_changed_at_once(value, numerics):
    runs = side(range(1), side=1)
    runs = {0: replace(runs[0], losses=(*runs[0].losses[:50], value, *runs[0].losses[51:]))}
    decision = compare(side(range(4)), runs, numerics)
    assert decision.state == "changed"
    assert "step 51" in decision.reason


def test_runs_that_are_too_short_prove_nothing():
    decision = compare(side(range(4), steps=40), side(range(2), side=1, steps=40), "rounding")
    assert decision.state == "no-proof"
    assert "60 are needed" in decision.reason
    assert compare(side(range(1), steps=5), side(range(1), steps=5), "exact").state == "no-proof"


def test_unequal_lengths_are_compared_where_both_are():
    decision = compare(side(range(4), steps=300), side(range(2), side=1, steps=200), "rounding")
    assert (decision.state, decision.steps) == ("unchanged", 200)
    assert (
        compare(
            side(range(4), steps=300), side(range(2), side=1, steps=300), "rounding", steps=120
        ).steps
        == 120
    )


def test_a_loss_that_is_no_scalar_proves_nothing():
    runs = mapped(side(range(2), side=1), lambda x: None)
    decision = compare(side(range(4)), runs, "rounding")
    assert decision.state == "no-proof"
    assert "autotune.step" in decision.reason


def test_a_few_missing_losses_are_left_out():
    runs = side(range(2), side=1)
    runs = {
        s: replace(r, losses=tuple(None if i % 40 == 0 else x for i, x in enumerate(r.losses)))
        for s, r in runs.items()
    }
    assert compare(side(range(4)), runs, "rounding").state == "unchanged"


def test_nothing_run_yet_asks_for_pairs():
    assert compare(side(range(4)), {}, "rounding").state == "more-pairs"
    assert compare({}, side(range(2)), "rounding", last_look=True).state == "undecided"
    with pytest.raises(ValueError, match="unknown class"):
        compare({}, {}, "approximate")


# --- units, signs, order --------------------------------------------------------------------------

TRANSFORMS = [lambda x: 1e-6 * x, lambda x: 1e6 * x, lambda x: -x]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("planted", [{"rounding": 0.02}, {"shift": 0.05}, {"rounding": 0.002}])
def test_the_unit_and_the_sign_of_the_loss_do_not_matter(transform, planted):
    plain = compare(side(range(4)), side(range(3), side=1, **planted), "rounding")
    other = compare(
        mapped(side(range(4)), transform),
        mapped(side(range(3), side=1, **planted), transform),
        "rounding",
    )
    assert other.state == plain.state
    assert other.margin == pytest.approx(abs(transform(plain.margin)))
    assert abs(other.largest_difference) == pytest.approx(abs(transform(plain.largest_difference)))


def test_a_loss_that_ends_near_zero_or_crosses_it_is_judged_by_its_progress():
    for end in (1e-4, 0.0, -0.3):
        baselines = mapped(side(range(4), end=0.0), lambda x, end=end: x + end)
        same = mapped(side(range(2), side=1, end=0.0), lambda x, end=end: x + end)
        other = mapped(side(range(2), side=1, end=0.0, speed=0.6), lambda x, end=end: x + end)
        assert compare(baselines, same, "rounding").state == "unchanged"
        assert compare(baselines, other, "rounding").state == "changed"


def test_the_order_of_the_seeds_does_not_matter():
    baselines, candidates = side(range(5)), side(range(4), side=1, rounding=0.02)
    turned = compare(
        dict(reversed(baselines.items())), dict(reversed(candidates.items())), "rounding"
    )
    assert turned.state == compare(baselines, candidates, "rounding").state
    assert turned.margin == pytest.approx(compare(baselines, candidates, "rounding").margin)


def test_a_tighter_tolerance_never_turns_not_unchanged_into_unchanged():
    for i in range(10):
        seeds = (
            side(range(20 * i, 20 * i + 4)),
            side(range(20 * i, 20 * i + 3), side=1, rounding=0.01, shift=0.01),
        )
        states = [compare(*seeds, "rounding", tolerance=t).state for t in (0.005, 0.02, 0.05)]
        assert states == sorted(states, key=lambda s: s == "unchanged")


# --- float16 --------------------------------------------------------------------------------------


def delayed(runs, skipped):
    """Each skipped step repeats the loss: the parameters did not move."""
    late = {}
    for seed, r in runs.items():
        base = run(seed)
        trend = np.array([run(seed, batch_noise=0.0, rounding=0.0).losses]).ravel()
        lag = np.array([sum(k < i for k in skipped) for i in range(STEPS)])
        late[seed] = replace(
            r,
            losses=tuple(
                np.array(base.losses) - trend + trend[np.maximum(np.arange(STEPS) - lag, 0)]
            ),
            skipped=skipped,
        )
    return late


def test_the_scalers_first_skips_are_a_delay_and_not_a_change():
    decision = compare(side(range(4)), delayed(side(range(2), side=1), (0, 1)), "rounding")
    assert decision.state == "unchanged"


@pytest.mark.parametrize("skipped", [(0, 1, 2, 3), tuple(range(20, 240, 20))])
def test_what_the_jobs_own_scaler_skips_on_both_sides_is_no_change(skipped):
    runs = delayed(side(range(4)), skipped)
    rounded = {
        seed: replace(r, losses=tuple(x * (1 + 1e-4 * (i % 3 - 1)) for i, x in enumerate(r.losses)))
        for seed, r in runs.items()
    }
    assert compare(runs, rounded, "rounding").state == "unchanged"


def test_batches_that_a_thread_reads_ahead_are_counted_at_any_step():
    """Of the job itself, too: then the count of samples tells nothing, unless they are many more."""

    def ahead(runs, every, factor=1):
        return {
            s: replace(r, samples_before=[factor * (x // every) * every for x in r.samples_before])
            for s, r in runs.items()
        }

    runs, more = side(range(4)), side(range(2), side=1)
    repeat, jumpy = ahead(runs, 48)[0], ahead(more, 80)
    assert compare(runs, jumpy, "rounding").state == "changed"
    assert compare(runs, jumpy, "rounding", baseline_repeat=repeat).state == "unchanged"
    double = ahead(more, 80, factor=2)
    assert compare(runs, double, "rounding", baseline_repeat=repeat).state == "changed"


def test_a_scale_that_settles_is_no_fault():
    runs = side(range(1))
    for settling in (4, 11, 15):  # 2**16 is far too high for a summed loss
        assert float16_fault(changed(runs, skipped=tuple(range(settling)))) is None
    assert float16_fault(changed(runs, skipped=tuple(range(16)))) is not None


@pytest.mark.parametrize("skipped", [(1, 2, 3, 4), tuple(range(20, 240, 20))])
def test_a_scaler_that_keeps_skipping_is_changed(skipped):
    decision = compare(side(range(4)), changed(side(range(2), side=1), skipped=skipped), "rounding")
    assert decision.state == "changed"
    assert "skipped for overflow" in decision.reason


def test_float16_needs_the_whole_window():
    runs = changed(side(range(2), side=1, steps=120), skipped=(0,))
    assert compare(side(range(4), steps=120), runs, "rounding").state == "no-proof"


def test_a_first_gradient_worse_than_bfloat16s_is_changed():
    bad = changed(side(range(2), side=1), gradient_error=0.05, gradient_error_allowed=0.01)
    good = changed(side(range(2), side=1), gradient_error=0.005, gradient_error_allowed=0.01)
    assert compare(side(range(4)), bad, "rounding").state == "changed"
    assert compare(side(range(4)), good, "rounding").state == "unchanged"


# --- what is handed on ----------------------------------------------------------------------------


def test_curves_have_few_points_in_samples():
    decision = verdict()
    assert 0 < len(decision.baseline_curve) <= 60
    assert len(decision.candidate_curve) <= 60
    assert max(decision.baseline_curve) <= (STEPS - 1) * 32
    assert list(decision.baseline_curve) == sorted(decision.baseline_curve)
    uncounted = replace(run(0), samples_before=(0.0,) * STEPS)
    assert max(curve([uncounted])) == pytest.approx(STEPS, abs=4)
    assert curve([]) == {}
    assert len(curve([run(0, steps=7)])) == 7


def record(**fields):
    window = Window((0.1,) * 3, (32.0,) * 3, {})
    return Record(0, window, (1.0, None, 0.5), (0.0, 32.0, 64.0), **fields)


def test_a_record_becomes_a_run():
    found = loss_run(record(gradient_norms=(1.0,), skipped=(1,)))
    assert found.first_non_finite() is None
    assert found.steps == 3
    assert found.skipped == (1,)
    assert loss_run(replace(record(), losses=(1.0, math.nan, 2.0))).first_non_finite() == 1


@pytest.mark.parametrize("state", ["unchanged", "changed", "undecided", "no-proof", "not-needed"])
def test_the_words_say_what_was_certified_and_what_was_not(state):
    text = certificate(LossVerdict(state, "the loss curves differ", 2, 240, 0.02, -0.004))
    if state == "unchanged":
        assert "same early trajectory" in text
        assert "Not certified" in text
        assert "±0.02" in text
        assert "240" in text
    else:
        assert "Certified: " not in text
    assert "bit-identical" in certificate(LossVerdict("unchanged", "", 1, 240, 0.0, 0.0))


def test_bits_that_are_the_same_are_the_same_beside_a_nan_of_the_jobs_own():
    """A setting that is exact passes; one that rounds cannot be judged, and neither can a job whose
    losses are all NaN."""
    odd = {0: replace(run(0), losses=[math.nan, *run(0).losses[1:]])}
    assert compare(odd, odd, "exact", baseline_repeat=odd[0]).state == "unchanged"
    assert compare(odd, odd, "rounding", baseline_repeat=odd[0]).state == "no-proof"
    other = {0: replace(odd[0], losses=[*odd[0].losses[:50], 9.0, *odd[0].losses[51:]])}
    assert compare(odd, other, "exact", baseline_repeat=odd[0]).state == "no-proof"
    never = {0: replace(run(0), losses=[math.nan] * len(run(0).losses), gradient_norms=())}
    assert compare(never, never, "exact", baseline_repeat=never[0]).state == "no-proof"


def test_a_larger_batch_that_learns_at_half_the_pace_does_not_pass_where_the_loss_hardly_moves() -> (
    None
):
    """Half the pace is well within 2% of a loss that moves by 5%; a loss that moves more shows it."""

    def sides(progress: float) -> tuple[dict[int, LossRun], dict[int, LossRun]]:
        runs: list[dict[int, LossRun]] = []
        for pace, batch in ((1.0, 32), (0.5, 128)):
            steps = 240 * 32 // batch + 1
            samples = [i * batch for i in range(steps)]
            runs.append(
                {
                    seed: LossRun(
                        [2.3 - progress * pace * min(1, n / 7680) + noise for n, noise in rows],
                        samples,
                    )
                    for seed in range(5)
                    for rows in [
                        [(n, random.Random(f"{seed} {n}").gauss(0, 0.01)) for n in samples]
                    ]
                }
            )
        return runs[0], runs[1]

    assert compare(*sides(0.12), "statistical", last_look=True).state == "no-proof"
    assert compare(*sides(0.8), "statistical", last_look=True).state == "changed"
