"""Settling, the phase clock and the loss meter, by themselves."""

from __future__ import annotations

import math
import time

import pytest

from autotune_trials.agent.blocks import LockstepSettling, Settling
from autotune_trials.measure import clock as phases
from autotune_trials.measure.clock import PhaseClock
from autotune_trials.measure.machine_load import between, snapshot
from autotune_trials.protocol import Block


def settle_at(times: list[float], queue: int = 0, seconds: float = 0.0, **limits: float) -> tuple[int, bool]:
    """(iterations settled for, on evidence) when iterations take ``times``."""
    settling = Settling(Block("b", (), 10, **limits), queue)  # type: ignore[arg-type]
    for count, time_s in enumerate(times, 1):
        settling.add(time_s)
        if settling.done(seconds):
            return count, settling.settled
    return len(times), False


def test_steady_times_settle_as_soon_as_two_groups_are_there() -> None:
    assert settle_at([1.0] * 50) == (8, True)
    assert settle_at([1.0] * 50, min_settle=20) == (20, True)


def test_falling_times_are_waited_for() -> None:
    falling = [8.0 * 0.9**i + 1 for i in range(100)]
    count, settled = settle_at(falling)
    assert settled and count > 20


def test_a_stall_starts_the_wait_anew_and_a_full_queue_is_used_up_first() -> None:
    times = [1.0] * 4 + [60.0] + [0.5] * 10 + [1.0] * 40
    assert settle_at(times)[0] == 5 + 8
    count, settled = settle_at(times, queue=20)
    assert settled and count >= 5 + 20 + 3


def test_times_that_never_level_end_unsettled() -> None:
    zigzag = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0] * 10
    wild = [t for i, t in enumerate(zigzag) if i % 8 in (0, 4)] * 10
    assert settle_at([2.0**i for i in range(60)], max_settle=30) == (30, False)
    assert settle_at(wild, max_settle=6) == (6, False)


def test_a_block_out_of_time_stops_settling() -> None:
    assert settle_at([2.0**i for i in range(60)], seconds=100.0, max_seconds=60.0) == (2, False)


def test_ranks_settle_for_the_same_count_whatever_their_times() -> None:
    settling = LockstepSettling(Block("b", (), 10, min_settle=5), 0)
    done = []
    for i in range(5):
        settling.add(float(i * i))
        done.append(settling.done(1e9))
    assert done == [False] * 4 + [True]


def test_phases_add_up_to_the_iteration() -> None:
    clock = PhaseClock()
    start = time.perf_counter()
    for phase in (phases.DATA, phases.FORWARD, phases.BACKWARD, phases.OPTIMIZER):
        clock.switch(phase)
        time.sleep(0.01)
    spent, _ = clock.cut()
    assert sum(spent) == pytest.approx(time.perf_counter() - start, abs=2e-3)
    assert all(spent[p] == pytest.approx(0.01, abs=8e-3) for p in range(5) if p != phases.TO_DEVICE)
    clock.switch(phases.DATA)
    time.sleep(0.01)
    clock.relabel(phases.AWAY)  # it was the wait for the end of an epoch
    spent, _ = clock.cut()
    assert spent[phases.DATA] == 0.0 and spent[phases.AWAY] >= 0.01


def test_own_work_is_not_foreign_load() -> None:
    start = snapshot()
    deadline = time.perf_counter() + 0.6
    while time.perf_counter() < deadline:
        pass
    end = snapshot()
    assert end.session_s - start.session_s > 0.2
    assert between(start, end).foreign_load <= (end.busy_s - start.busy_s - 0.2) / 0.6


def test_loss_meter_sums_scalars_and_knows_what_is_none() -> None:
    import torch

    from autotune_trials.agent.loss import LossMeter

    meter = LossMeter(torch)
    meter.add(torch.tensor(1.5))
    meter.add([torch.tensor(0.25), torch.ones(3)])
    meter.end_step()
    meter.add(torch.ones(2))
    meter.end_step()
    meter.add(torch.tensor(math.inf))
    meter.add(torch.tensor(-math.inf))
    meter.end_step()
    first, second, third = meter.values()
    assert first == 1.75 and second is None and third is not None and math.isnan(third)
