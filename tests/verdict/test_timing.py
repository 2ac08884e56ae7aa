"""From iteration times to a cost: what counts, what is left out, and that units do not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.verdict.alike import counted_alike
from autotune.verdict.bottleneck import name_bottleneck
from autotune.verdict.disturbed import disturbed
from autotune.verdict.iterations import (
    drop_start,
    first_counted,
    from_stock,
    later_epoch,
    warm_up_end,
    with_epoch_of,
)
from autotune.verdict.timing import (
    anatomy,
    cost_of_counted,
    cost_per_sample,
    cost_without_data,
    joules_per_sample,
    mean_turnover_s,
    reader_of,
    start_up_excess,
    winsorized_mean,
)
from autotune_trials.protocol.messages import PHASES, Window


def window(times, samples=32.0, data_share=0.25, **more) -> Window:
    times = tuple(map(float, times))
    data = tuple(t * data_share for t in times)
    phases = dict.fromkeys(PHASES, 0.0)
    phases |= {
        "data": math.fsum(data),
        "forward": math.fsum(times) * 0.5,
        "other": math.fsum(times) * (0.5 - data_share),
    }
    return Window(times, (float(samples),) * len(times), phases, data_s=data, **more)


def cost_of_run(window, *, later_epochs=True, turnover_s=None):
    ((_, counted),) = counted_alike([window], later_epochs=later_epochs)
    return cost_of_counted(counted, turnover_s=turnover_s)


def test_one_long_stall_of_the_machine_counts_ten_medians_and_no_more():
    assert winsorized_mean([1.0] * 99 + [1000.0]) == pytest.approx((99 + 10) / 100)


def test_a_configuration_that_stalls_now_and_then_pays_for_it():
    times = [1.0] * 90 + [5.0] * 10  # a median or a minimum would call this 1.0
    assert winsorized_mean(times) == pytest.approx(1.4)


def test_bias_from_regular_loader_stalls_is_within_one_percent():
    rng = np.random.default_rng(1)
    biases = []
    for _ in range(100):
        times = rng.lognormal(0, 0.03, 200) * (1 + 6 * (rng.random(200) < 0.1))
        biases.append(math.log(winsorized_mean(list(times)) / times.mean()))
    assert abs(np.mean(biases)) < 0.01


def test_no_times_is_an_error():
    with pytest.raises(ValueError, match="without iterations"):
        winsorized_mean([])


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_workers_that_deliver_in_rounds_are_charged_for_their_wait(workers):
    w = replace(window(([48.0] + [0.7] * (workers - 1)) * 6), workers=workers)
    mean = (48.0 + 0.7 * (workers - 1)) / workers
    assert winsorized_mean(w.times_s, rounds_of=workers) == pytest.approx(mean)
    assert cost_per_sample(w) == pytest.approx(mean / 32)
    stalled = replace(w, times_s=(*w.times_s[:-1], 1e6))
    assert cost_per_sample(stalled) < 3 * cost_per_sample(w), (
        "a stall of the machine is still pulled down"
    )


def test_the_winsorized_mean_does_not_care_for_order_or_unit():
    rng = np.random.default_rng(2)
    times = list(rng.lognormal(0, 1.5, 50))
    assert winsorized_mean(list(rng.permutation(times))) == pytest.approx(winsorized_mean(times))
    assert winsorized_mean([1e3 * t for t in times]) == pytest.approx(1e3 * winsorized_mean(times))


def test_steady_times_lose_only_the_minimum_almost_always():
    rng = np.random.default_rng(3)
    ends = [
        warm_up_end(list(rng.lognormal(0, s, 240)))
        for s in (0.0, 0.01, 0.1, 0.5)
        for _ in range(100)
    ]
    assert np.mean([e < 10 + 16 for e in ends]) > 0.9


@pytest.mark.parametrize("slow", [1.05, 1.3, 3.0])
def test_a_slow_start_is_left_out_and_little_more(slow):
    rng = np.random.default_rng(4)
    for _ in range(50):
        times = np.concatenate([np.full(60, slow), np.full(180, 1.0)]) * rng.lognormal(0, 0.01, 240)
        assert warm_up_end(list(times)) + 7 >= 60
        assert warm_up_end(list(times)) <= 120


def test_a_machine_whose_speed_wanders_is_not_warming_up():
    rng = np.random.default_rng(6)
    kept = []
    for _ in range(50):
        wander = np.zeros(240)
        for i in range(1, 240):  # 15% of scatter, correlated over some thirty iterations
            wander[i] = 0.97 * wander[i - 1] + 0.036 * rng.normal()
        kept.append(1 - warm_up_end(list(np.exp(wander))) / 240)
    assert np.mean(kept) > 0.7


def test_a_slower_end_is_no_warm_up_of_what_was_before():
    times = np.concatenate([np.full(180, 1.0), np.full(60, 1.15)]) * np.random.default_rng(
        7
    ).lognormal(0, 0.01, 240)
    assert warm_up_end(list(times)) < 26


def test_a_full_queue_that_looks_too_fast_is_left_out_too():
    times = [0.6] * 40 + [1.0] * 120
    assert 38 <= warm_up_end(times) <= 56


def test_a_burst_in_the_middle_is_not_taken_for_warm_up():
    times = [1.0] * 100 + [1.8] * 6 + [1.0] * 100
    assert warm_up_end(times) < 20


def test_a_loader_that_stalls_every_fourth_iteration_is_steady():
    assert warm_up_end([0.1, 0.1, 0.1, 0.7] * 50) < 20


def test_the_start_does_not_depend_on_the_unit():
    times = list(np.random.default_rng(5).lognormal(0, 0.3, 200) + np.exp(-np.arange(200) / 10))
    assert warm_up_end(times) == warm_up_end([1e-6 * t for t in times])


@pytest.mark.parametrize("n", [0, 1, 2, 9, 10, 25, 26, 40])
def test_short_windows_keep_at_least_half(n):
    end = warm_up_end([1.0] * n)
    assert 0 <= end <= max(n // 2, 10)
    assert n == 0 or end < n


@pytest.mark.parametrize("length", [300, 430, 500, 640, 1000])
def test_workers_that_fill_their_queue_anew_each_epoch_are_charged_for_all_of_it(length):
    """64 workers and 250 batches per epoch: the first batches are slow, the last are ready in the
    queue.
    """
    epoch = ([40.0] + [0.3] * 9) * 3 + [0.6] * 220
    turns = tuple(range(250, length, 250))
    w = window((epoch * 4)[:length], turnovers_at=turns, turnovers_s=(100.0,) * len(turns))
    w = replace(w, workers=64, epoch_iterations=250)
    assert cost_of_run(w) * 32 == pytest.approx((sum(epoch) + 100.0) / 250)


@pytest.mark.parametrize("epoch", [None, 10_000])
def test_an_epochs_end_costs_where_the_loader_does_not_know_its_length(epoch):
    """An IterableDataset without len(), or a job that ends its epochs early: one end was seen."""
    w = window([0.05] * 300, turnovers_at=(200,), turnovers_s=(4.0,), epoch_iterations=epoch)
    assert cost_of_run(w) * 32 == pytest.approx(0.05 + 4.0 / 200)
    other = window([0.06] * 300)
    assert with_epoch_of(other, w).epoch_iterations == 200
    assert with_epoch_of(replace(other, epoch_iterations=100), w).epoch_iterations == 100
    assert with_epoch_of(replace(other, epoch_iterations=500), w).epoch_iterations == 200
    assert with_epoch_of(replace(other, samples=(64.0,) * 300), w).epoch_iterations == 100


@pytest.mark.parametrize("epoch", [1, 4, 8])
def test_the_warm_up_does_not_count_however_short_an_epoch_is(epoch):
    turns = tuple(range(epoch, 400, epoch))
    w = window([3.0] * 10 + [1.0] * 390, turnovers_at=turns, turnovers_s=(0.0,) * len(turns))
    w = replace(w, workers=2, epoch_iterations=epoch)
    assert cost_of_run(w) * 32 == pytest.approx(1.0)


def test_rounds_leave_no_iteration_out():
    assert winsorized_mean([5.0] * 9 + [1.0] * 20, rounds_of=10) == pytest.approx(65 / 29)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_epoch_is_left_out_where_enough_of_the_second_is_there(workers):
    """It was 20% faster: there had been no evaluation yet."""
    times = [0.8] * 100 + [1.0] * 60
    short, long = (window(times[:n], turnovers_at=(100,), turnovers_s=(0.0,)) for n in (130, 160))
    long = replace(long, workers=workers, epoch_iterations=100)
    assert later_epoch(short) is None and later_epoch(long) == 100
    assert cost_of_run(short) < 0.95 / 32
    assert cost_of_run(long) == pytest.approx(1.0 / 32)
    assert first_counted(long) >= 110 > first_counted(long, later_epochs=False)
    assert drop_start(long, 40).turnovers_at == (60,)
    assert drop_start(long, 110).turnovers_at == ()


@pytest.mark.parametrize("made", [0.5, 0.8, 0.9, 0.97, 1.0, 1.2])
def test_batches_made_during_the_start_cost_what_the_others_do(made):
    """32 batches are ready; then the workers make ``made`` of a batch per iteration."""
    stock, times, unmade = 32.0, [], []
    for _ in range(240):
        times.append(1.0 + max(0.0, (1.0 - stock) / made))  # until a whole batch is ready
        stock = min(stock + made * times[-1], 33.0) - 1.0
        unmade.append(32.0 - stock)
    found = cost_of_run(window(times, unmade=tuple(unmade), workers=8)) * 32
    assert found == pytest.approx(max(1.0, 1 / made), rel=0.015)


def test_of_an_epoch_whose_last_batches_are_drawn_early_the_stock_is_known_all_the_same():
    """16 workers, 250 batches per epoch and a queue of 128: the last are drawn halfway. The agent
    then tells how far workers are behind a full queue, as long as each has something to do.
    """
    stock, requested, behind = 40.0, [], []
    for n in range(250):
        stock -= 0.15  # workers make 0.85 of a batch in an iteration
        requested.append(min(128, 249 - n) - stock)
        behind.append(128 - stock if requested[-1] >= 16 else behind[-1])
    found, wrong = (
        cost_of_run(window([1.0] * 250, unmade=tuple(each), workers=16)) * 32
        for each in (behind, requested)
    )
    assert found == pytest.approx(1 / 0.85, rel=0.02)
    assert wrong < 1.01, "requests run out"


def test_a_backlog_that_stays_is_no_stock_used_up():
    rng = np.random.default_rng(8)
    for _ in range(50):
        unmade = np.concatenate([np.linspace(0, 12, 16), 12 + rng.normal(0, 1, 224)])
        w = window([1.0] * 240, unmade=tuple(unmade), workers=16)
        assert from_stock(drop_start(w, first_counted(w))) < 0.005


def test_dropping_the_start_keeps_the_rest_as_it_was():
    whole = window([9.0] * 10 + [1.0] * 30, turnovers_s=(0.5,), epoch_iterations=20)
    rest = drop_start(whole, 10)
    assert rest.times_s == (1.0,) * 30
    assert len(rest.samples) == len(rest.data_s) == 30
    assert math.fsum(rest.phases_s.values()) == pytest.approx(30.0)
    assert rest.phases_s["data"] == pytest.approx(7.5)
    assert rest.turnovers_s == (0.5,)


def test_the_data_phase_is_exact_when_only_the_start_waited():
    whole = replace(
        window([1.0] * 40),
        data_s=(0.9,) * 10 + (0.0,) * 30,
        phases_s={"data": 9.0, "forward": 31.0},
    )
    assert drop_start(whole, 10).phases_s == {
        "data": pytest.approx(0.0),
        "forward": pytest.approx(30.0),
    }


def test_phases_are_exact_where_each_iteration_has_its_own():
    each = {"data": (0.1,) * 40, "forward": (8.9,) * 10 + (0.4,) * 30, "optimizer": (0.5,) * 40}
    whole = replace(window([9.5] * 10 + [1.0] * 30), phase_times_s=each)
    rest = drop_start(whole, 10)
    assert rest.phases_s == pytest.approx({"data": 3.0, "forward": 12.0, "optimizer": 15.0})
    assert len(rest.phase_times_s["forward"]) == 30


def test_dropping_nothing_or_everything():
    whole = window([1.0, 2.0, 3.0])
    assert drop_start(whole, 0) is whole
    assert drop_start(whole, 99).times_s == (3.0,)
    assert drop_start(window([]), 3).times_s == ()


def test_cost_is_time_over_samples_with_the_epoch_ends_spread_over_the_epoch():
    w = window([0.2] * 50, samples=10, turnovers_s=(4.0, 6.0), epoch_iterations=100)
    assert cost_per_sample(w) == pytest.approx(0.2 / 10 + 5.0 / 1000)
    assert cost_per_sample(w, turnover_s=1.0) == pytest.approx(0.2 / 10 + 1.0 / 1000)


def test_epoch_ends_do_not_count_where_the_epoch_is_not_known():
    assert cost_per_sample(window([0.2] * 50, samples=10, turnovers_s=(4.0,))) == pytest.approx(
        0.02
    )
    assert mean_turnover_s(window([1.0]), window([1.0], turnovers_s=(2.0, 4.0))) == 3.0
    assert mean_turnover_s(window([1.0])) is None


def test_where_no_sample_was_counted_the_cost_is_a_step():
    assert cost_per_sample(window([0.2] * 50, samples=0)) == pytest.approx(0.2)


def test_the_cost_without_data_takes_the_waiting_out_of_each_iteration():
    w = window([1.0] * 20, samples=4, data_share=0.25)
    assert cost_without_data(w) == pytest.approx(0.75 / 4)
    assert cost_without_data(replace(w, data_s=())) == pytest.approx(0.75 / 4)


def test_what_the_cpu_waits_for_while_the_device_still_works_is_no_waiting():
    """As on CUDA: batches take 90 ms to arrive, but the device needs 100 ms for the previous one
    and is never idle.
    """
    each = {"data": (0.001,) * 20, "forward": (0.099,) * 20}
    w = replace(
        window([0.1] * 20, samples=1, data_share=0.9),
        phase_times_s=each,
        phases_s={name: math.fsum(values) for name, values in each.items()},
    )
    assert cost_without_data(w) == pytest.approx(0.099)
    parts = anatomy(w, left_out=0)
    assert parts.reader_ratio == pytest.approx(0.01)
    assert name_bottleneck(parts, None)[0] == "compute"
    facts = reader_of([replace(w, reader_fetches=20, reader_cpu_s=1.8, reader_wall_s=1.8)], None)
    assert facts is not None and facts.compute_s == pytest.approx(0.099)


def test_anatomy_adds_up():
    parts = anatomy(window([0.1] * 40, samples=8), left_out=12)
    assert (parts.minor_faults, parts.system_s) == (0.0, 0.0), "not known"
    assert (
        math.fsum(parts.phases_s.values())
        == pytest.approx(parts.batch_cost_s)
        == pytest.approx(0.1)
    )
    assert parts.reader_ratio == pytest.approx(0.25)
    assert parts.samples_per_s == pytest.approx(80)
    assert (parts.iterations, parts.left_out) == (40, 12)


def test_start_up_excess_is_what_the_start_cost_beyond_steady_iterations():
    assert start_up_excess(window([3.0] * 5 + [1.0] * 20), 5) == pytest.approx(10.0)
    assert start_up_excess(window([0.5] * 5 + [1.0] * 20), 5) == 0.0


def test_load_that_is_always_there_disturbs_nothing_and_a_rise_does():
    calm = [window([1.0] * 9, foreign_load=0.5, cpu_pressure=0.6)] * 3
    assert disturbed(window([1.0] * 9, foreign_load=0.6, cpu_pressure=0.65), calm) is None
    assert "other processes" in disturbed(window([1.0] * 9, foreign_load=0.9), calm)
    assert "waited for a CPU" in disturbed(window([1.0] * 9, cpu_pressure=0.95), calm)


def test_pressure_the_job_makes_itself_is_no_disturbance():
    assert disturbed(window([1.0] * 9, cpu_pressure=0.9, foreign_load=0.02)) is None
    assert disturbed(window([1.0] * 9, cpu_pressure=0.9, foreign_load=0.2)) is not None
    assert disturbed(window([1.0] * 9, foreign_load=0.6)) is not None


def test_a_device_held_below_its_clock_spoils_a_window_unless_it_always_is():
    held, free = window([1.0] * 9, throttled="thermal slowdown"), window([1.0] * 9)
    assert "thermal slowdown" in disturbed(held)
    assert "thermal slowdown" in disturbed(held, [free, held])
    assert disturbed(held, [held, held, free]) is None
    assert disturbed(window([1.0] * 9), [held]) is None


def test_page_faults_and_system_time_of_the_start_are_left_out() -> None:
    counts, system_s = (9000,) * 10 + (50,) * 30, (0.02,) * 10 + (0.001,) * 30
    whole = window(
        [0.1] * 40,
        minor_faults=sum(counts),
        minor_fault_counts=counts,
        system_s=sum(system_s),
        system_times_s=system_s,
        user_s=8.0,
        involuntary_switches=80,
    )
    parts = anatomy(drop_start(whole, 10), 10)
    assert parts.minor_faults == 50.0
    assert parts.system_s == pytest.approx(0.001)
    assert parts.user_s == pytest.approx(0.2)
    assert parts.involuntary_switches == pytest.approx(2.0)


def test_the_energy_of_workers_that_deliver_in_rounds_counts_in_full():
    """One wait, then seven ready batches, at 50 W throughout."""
    times_s = (0.067,) + (0.001,) * 7
    joules = tuple(50 * t for t in times_s)
    rounds = Window(times_s * 40, (32.0,) * 320, {}, workers=8, joules=joules * 40)
    assert joules_per_sample(rounds) == pytest.approx(sum(joules) / 256, rel=0.01)
