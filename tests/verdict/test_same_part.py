"""Two runs are compared over the same part of the training, and their stalls count alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autotune.stages.measuring.pair_figures import PairFigures
from autotune.verdict.alike import OwnStalls, counted_alike, own_stalls
from autotune.verdict.iterations import first_counted, later_epoch
from autotune.verdict.sequential import robust_mean
from autotune_trials.protocol.messages import Record, Window

SPEC: Any = SimpleNamespace(objective="throughput", second_objective="", planned_steps=20_000)


def window(times: Sequence[float], **more: Any) -> Window:
    times = tuple(times)
    return Window(times, (8.0,) * len(times), {"other": sum(times)}, **more)


def noisy(iteration_s: float, seed: int, steps: int = 240) -> list[float]:
    return list(np.random.default_rng(seed).lognormal(np.log(iteration_s), 0.01, steps))


def figures(reference: Sequence[Window], candidate: Sequence[Window]) -> PairFigures:
    def records(windows: Sequence[Window]) -> dict[int, Record]:
        return {
            seed: Record(0, w, (), (), notes={"in_force": {"loader": {"num_workers": w.workers}}})
            for seed, w in enumerate(windows)
        }

    return PairFigures(SPEC, records(reference), records(candidate))


def saving(iteration_s: float, seed: int, save_s: float, workers: int = 0) -> Window:
    """A checkpoint every 100 steps."""
    times = noisy(iteration_s, seed)
    for at in (99, 199):
        times[at] += save_s
    return window(times, workers=workers)


def speedup(of: PairFigures) -> float:
    return float(np.exp(np.mean(of.log_speedups())))


@pytest.mark.parametrize("save_s", [2.0, 10.0])
def test_a_checkpoint_that_both_write_counts_in_full_on_both_sides(save_s: float) -> None:
    pairs = figures(
        [saving(0.1, s, save_s) for s in range(5)], [saving(0.05, 9 + s, save_s) for s in range(5)]
    )
    counted = 0.98 * 240  # the warm-up, 10 steps or a few more, does not
    truth = (0.1 * counted + 2 * save_s) / (0.05 * counted + 2 * save_s)
    assert speedup(pairs) == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize("save_s", [2.0, 5.0, 10.0])
def test_dropping_workers_makes_no_checkpoint_shorter(save_s: float) -> None:
    pairs = figures(
        [saving(0.1, s, save_s, workers=8) for s in range(5)],
        [saving(0.1, 9 + s, save_s) for s in range(5)],
    )
    assert speedup(pairs) == pytest.approx(1.0, abs=0.03)


def test_a_stall_of_the_machine_is_limited_alike() -> None:
    reference, candidate = ([window(noisy(t, s)) for s in range(5)] for t in (0.1, 0.05))
    stalled = dataclasses.replace(
        candidate[2], times_s=(*candidate[2].times_s[:150], 60.0, *candidate[2].times_s[151:])
    )
    candidate[2] = stalled
    assert own_stalls([reference, candidate]) == [OwnStalls(), OwnStalls()]
    assert np.exp(figures(reference, candidate).log_speedups()[2]) == pytest.approx(
        24 / (12 + 1.0), rel=0.03
    )


@pytest.mark.parametrize("workers", [0, 4])
def test_both_count_over_the_same_epochs(workers: int) -> None:
    """It fills a cache: from the second epoch on a step takes less than half as long."""

    def epochs(first_s: float, second_s: float, seconds: int) -> Window:
        return window(
            [first_s] * 150 + [second_s] * seconds,
            turnovers_at=(150,),
            turnovers_s=(0.0,),
            epoch_iterations=150,
            workers=workers,
        )

    short, long = epochs(0.45, 0.2, 22), epochs(0.333, 0.148, 90)
    assert speedup(figures([short], [long])) == pytest.approx(0.45 / 0.333, rel=0.01)
    both = figures([epochs(0.45, 0.2, 90)], [long])
    assert speedup(both) == pytest.approx(0.2 / 0.148, rel=0.01) and not both.first_epoch_only
    none = window([0.45] * 140, epoch_iterations=150, workers=workers)
    cut_off = figures([none], [long])
    assert cut_off.first_epoch_only
    assert speedup(cut_off) == pytest.approx(0.45 / 0.333, rel=0.01)


def test_a_larger_batch_whose_epochs_are_short_is_compared_over_the_same_epochs() -> None:
    """As fast by the sample; batches of 32 beside 8, and 1200 samples an epoch."""
    small = window(
        [0.45] * 150 + [0.2] * 90, turnovers_at=(150,), turnovers_s=(0.0,), epoch_iterations=150
    )
    large = window(
        [1.8] * 38 + [0.8] * 38, turnovers_at=(38,), turnovers_s=(0.0,), epoch_iterations=38
    )
    large = dataclasses.replace(large, samples=(32.0,) * 76)
    assert speedup(figures([small], [large])) == pytest.approx(1.0, rel=0.05)


def test_what_happens_once_is_no_stall_of_the_jobs_own() -> None:
    """Compiled anew for an epoch's smaller last batch, which a whole training pays for once."""
    reference = [window(noisy(0.35, s)) for s in range(5)]
    candidate = []
    for seed in range(5):
        times = noisy(0.245, 9 + seed)
        times[204] += 20.0
        candidate.append(window(times))
    truth = 230 * 0.35 / (230 * 0.245 + 10 * 0.35)
    assert speedup(figures(reference, candidate)) == pytest.approx(truth, rel=0.03)


def test_windows_that_hold_unlike_numbers_of_checkpoints_are_charged_equally_many() -> None:
    """0.5 s every 190 steps: one side's windows hold one, the other's two."""

    def saves(iteration_s: float, seed: int, steps: int, **more: Any) -> Window:
        times = noisy(iteration_s, seed, steps)
        for at in range(189, steps, 190):
            times[at] += 0.5
        return window(times, **more)

    pairs = figures(
        [saves(0.0100, s, 363) for s in range(5)], [saves(0.0093, 9 + s, 388) for s in range(5)]
    )
    rate = 15 / (5 * (353 + 378))
    truth = (0.01 + 0.5 * rate) / (0.0093 + 0.5 * rate)
    assert speedup(pairs) == pytest.approx(truth, rel=0.01)
    # whole epochs, of which only some hold one
    epochs = {"turnovers_at": (150, 300), "turnovers_s": (0.0, 0.0), "epoch_iterations": 150}
    workers = figures(
        [saves(0.045, s, 240) for s in range(5)],
        [saves(0.03, 9 + s, 354, workers=1, **epochs) for s in range(5)],
    )
    assert max(workers.log_speedups()) - min(workers.log_speedups()) < 0.02
    assert speedup(workers) < 0.045 / 0.03


def test_checkpoints_before_the_end_of_a_warm_up_are_counted_too() -> None:
    """The first epoch is slower, and left out; one checkpoint in 100 steps is one all the same."""

    def epochs(first_s: float, second_s: float, seed: int) -> Window:
        times = [*noisy(first_s, seed, 150), *noisy(second_s, 50 + seed, 90)]
        for at in (100, 200):
            times[at] += 1.0
        return window(times, turnovers_at=(150,), turnovers_s=(0.0,), epoch_iterations=150)

    pairs = figures(
        [epochs(0.06, 0.046, s) for s in range(5)], [epochs(0.04, 0.03, 9 + s) for s in range(5)]
    )
    rate = 2 / 230
    truth = (0.046 + rate) / (0.03 + rate)
    assert speedup(pairs) == pytest.approx(truth, rel=0.02)


def test_what_only_one_side_stalls_for_is_charged_to_it() -> None:
    """Both save 2 s at the same steps; the candidate also stops for 1.2 s in between."""
    reference = [saving(0.1, s, 2.0) for s in range(5)]
    candidate = []
    for seed in range(5):
        times = list(saving(0.095, 9 + seed, 2.0).times_s)
        for at in (49, 149):
            times[at] += 1.2
        candidate.append(window(times))
    assert speedup(figures(reference, candidate)) == pytest.approx(0.956, abs=0.015)


def test_batches_that_cannot_be_counted_are_one_sample_each() -> None:
    sides = [saving(0.1, s, 2.0) for s in range(5)], [saving(0.05, 9 + s, 2.0) for s in range(5)]
    uncounted = [[dataclasses.replace(w, samples=()) for w in side] for side in sides]
    assert speedup(figures(*uncounted)) == pytest.approx(speedup(figures(*sides)), rel=0.02)


def test_two_runs_are_compared_before_there_are_others() -> None:
    pairs = figures([], [])
    a, b = (figures([window(noisy(t, 1))], []).reference[0] for t in (0.1, 0.05))
    first, second = pairs.costs(a, b)
    assert first / second == pytest.approx(2.0, rel=0.01)


def test_a_larger_batch_that_ends_before_the_first_checkpoint_pays_for_it_all_the_same() -> None:
    small = [saving(0.1, s, 10.0) for s in range(5)]
    large = [
        dataclasses.replace(window(noisy(0.42, 9 + s, 70)), samples=(32.0,) * 70) for s in range(5)
    ]
    assert speedup(figures(small, large)) == pytest.approx(0.98, abs=0.02)


def test_a_trend_is_the_same_for_both() -> None:
    """Sequences grow; the candidate, just as fast, has a longer window and more jitter."""
    rng = np.random.default_rng(5)
    grows = 0.08 + 0.02 * np.arange(400) / 240
    a, b = (
        window(grows[:240] * rng.lognormal(0, 0.001, 240)),
        window(grows * rng.lognormal(0, 0.16, 400)),
    )
    (first, one), (second, other) = counted_alike([a, b], later_epochs=False)
    assert first == second and len(one.times_s) == len(other.times_s)
    assert speedup(figures([a], [b])) == pytest.approx(1.0, abs=0.035)


def test_a_batch_size_is_compared_over_the_same_samples() -> None:
    a, b = window([0.01] * 900), window([0.04] * 300)
    b = dataclasses.replace(b, samples=(32.0,) * 300)
    (start, one), (begun, other) = counted_alike([a, b], later_epochs=False)
    assert start * 8 == pytest.approx(begun * 32, abs=32)
    assert sum(one.samples) == pytest.approx(sum(other.samples), abs=64)


def test_an_evaluation_that_takes_far_longer_is_no_gain() -> None:
    """Fewer threads: faster steps, slower evaluation."""
    a = [window(noisy(0.03, s), away_s=4.0, interruptions=2) for s in range(3)]
    b = [window(noisy(0.027, 9 + s), away_s=18.0, interruptions=2) for s in range(3)]
    assert (figures(a, b).no_gain_with_evaluation() or 0.0) > 2
    hung = [*b[:2], dataclasses.replace(b[2], away_s=60.0)]
    quick = [dataclasses.replace(w, away_s=4.0) for w in hung[:2]]
    assert figures(a, [*quick, hung[2]]).no_gain_with_evaluation() is None, "one run tells little"
    same = [dataclasses.replace(w, away_s=4.0) for w in b]
    assert figures(a, same).no_gain_with_evaluation() is None
    rest = [dataclasses.replace(w, away_s=4.7) for w in b]
    assert figures(a, rest).no_gain_with_evaluation() == pytest.approx(1.0, abs=0.02), (
        "as long as before"
    )


@pytest.mark.parametrize("rising", [1, -1])
def test_epochs_ordered_by_length_are_compared_over_the_same_samples(rising: int) -> None:
    """The baseline without workers, the candidate with two; its second epoch is whole."""

    def epochs(iteration_s: float, steps: int, workers: int, seed: int) -> Window:
        shape = 1 + rising * (np.arange(steps) % 400 / 400 - 0.5)
        times = np.array(noisy(iteration_s, seed, steps)) * shape
        turns = tuple(range(400, steps, 400))
        lost = (0.0,) * len(turns)
        return window(
            times, turnovers_at=turns, turnovers_s=lost, epoch_iterations=400, workers=workers
        )

    slow = [epochs(0.02, 620, 0, s) for s in range(3)]
    fast = [epochs(0.01, 820, 2, 9 + s) for s in range(3)]
    assert speedup(figures(slow, fast)) == pytest.approx(2.0, rel=0.02)


def test_the_first_epoch_counts_on_both_sides_where_one_shows_too_little_of_the_second() -> None:
    def epochs(steps: int) -> Window:
        turns = tuple(range(30, steps, 30))
        lost = (0.0,) * len(turns)
        return window(
            noisy(0.1, steps, steps),
            turnovers_at=turns,
            turnovers_s=lost,
            epoch_iterations=30,
            workers=2,
        )

    short, long = epochs(45), epochs(119)
    assert later_epoch(short) is None and later_epoch(long) is not None
    (_, (start, _)) = counted_alike([short, long], later_epochs=False)
    assert start == first_counted(long, later_epochs=False) < 30


def by_workers(later_s: float, seed: int, later: int, epoch: int = 250) -> Window:
    """The candidate's 16 workers take 3.0 ms a batch in the first epoch, ``later_s`` after it."""
    steps = epoch + later
    times = noisy(0.0030, seed, epoch) + noisy(later_s, seed + 50, later)
    turns = tuple(range(epoch, steps, epoch))
    ends = {"turnovers_at": turns, "turnovers_s": (0.0,) * len(turns)}
    return window(times, **ends, epoch_iterations=epoch, workers=16)


@pytest.mark.parametrize("later_s", [0.0028, 0.0033])
@pytest.mark.parametrize("later", [1500, 240])
@pytest.mark.parametrize("steps", [200, 250, 251, 270, 289])
def test_workers_are_never_faster_than_in_their_own_later_epochs(
    later_s: float, later: int, steps: int
) -> None:
    """The job without workers makes hardly more than its first epoch of 250."""
    turns = (250,) if steps > 250 else ()
    ends = {"turnovers_at": turns, "turnovers_s": (0.0,) * len(turns)}
    slow = [window(noisy(0.06, s, steps), **ends, epoch_iterations=250) for s in range(3)]
    fast = [by_workers(later_s, 9 + s, later) for s in range(3)]
    expected = 0.06 / max(0.0030, later_s)
    assert speedup(figures(slow, fast)) == pytest.approx(expected, rel=0.015)


def test_slower_later_epochs_of_the_reference_are_no_gain() -> None:
    """Smaller batches: as many steps end within the candidate's first epoch."""
    large = [
        dataclasses.replace(by_workers(0.0036, s, 300, epoch=100), samples=(32.0,) * 400)
        for s in range(3)
    ]
    small = [window(noisy(0.00075, 9 + s, 400), epoch_iterations=400, workers=16) for s in range(3)]
    assert speedup(figures(large, small)) == pytest.approx(1.0, rel=0.015)


def test_a_short_first_pass_is_not_taken_for_an_epoch() -> None:
    """The job resumes within an epoch of 2000 steps, 240 before its end."""

    def resumed(seed: int, lost_s: float) -> Window:
        return window(
            noisy(0.02, seed, 560),
            turnovers_at=(240,),
            turnovers_s=(lost_s,),
            epoch_iterations=2000,
        )

    pairs = figures([resumed(s, 2.0) for s in range(3)], [resumed(9 + s, 0.0) for s in range(3)])
    assert speedup(pairs) == pytest.approx((0.02 * 2000 + 2.0) / (0.02 * 2000), rel=0.01)


def test_a_candidate_that_stalls_at_random_is_charged_in_full() -> None:
    def stalling(seed: int, share: float = 0.02) -> Window:
        times = np.array(noisy(0.012, 99 + seed, 300))
        times[np.random.default_rng(seed).random(300) < share] += 0.5
        return window(times)

    steady = [window(noisy(0.02, s, 300)) for s in range(9)]
    found = figures(steady, [stalling(s) for s in range(9)]).no_gain_with_stalls()
    assert found is not None and found < 1
    quick = [stalling(s, 0.0) for s in range(9)]
    assert figures(steady, quick).no_gain_with_stalls() is None
    frozen = [stalling(0, 0.05), *quick[1:]]
    assert figures(steady, frozen).no_gain_with_stalls() is None, "one run tells little"
    compiled = [
        dataclasses.replace(w, times_s=(*w.times_s[:60], 9.0, *w.times_s[61:])) for w in quick
    ]
    assert figures(steady, compiled).no_gain_with_stalls() is None, "a training pays for it once"


def test_what_the_second_run_of_a_pair_finds_in_memory_does_not_favour_the_faster_side() -> None:
    """Reading takes 10 ms, of the data that the first run of a pair has read nothing."""
    pairs = figures(
        [window(np.array(noisy(0.1, s)) + 0.01 * (s % 2 == 0)) for s in range(9)],
        [window(np.array(noisy(0.05, 99 + s)) + 0.01 * (s % 2)) for s in range(9)],
    )
    mean, *_ = robust_mean(pairs.log_speedups(), pairs.log_levels())
    assert 0.11 / 0.06 < np.exp(mean) < 0.1 / 0.05
    by_order = [np.mean(pairs.log_levels()[order::2]) for order in (0, 1)]
    assert by_order == pytest.approx([0.0, 0.0], abs=0.02)
