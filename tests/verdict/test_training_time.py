"""The time of a whole training, with every part known."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.verdict.training_time import evaluation_costs, training_s
from autotune_trials.protocol.messages import Window


def window(**parts) -> Window:
    """100 iterations of 0.1 s and 8 samples."""
    return Window((0.1,) * 100, (8.0,) * 100, {}, **parts)


def planned_s(of: Window, run_s: float, steps: int = 1000, once_s: float = 0.0) -> float:
    evaluation, _ = evaluation_costs(of, of) or (0.0, 0.0)
    return training_s(of, run_s=run_s, cost=0.1 / 8 + evaluation, samples=8 * steps, once_s=once_s)


def test_start_and_first_steps_come_once():
    assert planned_s(window(), run_s=10.0) == pytest.approx(100.0)
    assert planned_s(window(), run_s=13.0) == pytest.approx(103.0)
    assert planned_s(window(), run_s=13.0, once_s=20.0) == pytest.approx(123.0)


def test_evaluation_comes_with_every_epoch():
    two_epochs = window(
        turnovers_s=(0.5, 0.5), turnovers_at=(40, 80), epoch_iterations=40, away_s=5.0
    )
    # 25 epochs of 2 s of evaluation each; the turnovers are part of the cost of a sample
    assert planned_s(two_epochs, run_s=15.0) == pytest.approx(100.0 + 25 * 2.0)


@pytest.mark.parametrize("times", [1, 4])
def test_what_interrupts_training_goes_on_at_the_pace_of_the_window(times: int):
    interrupted = window(away_s=2.0, interruptions=times)
    assert planned_s(interrupted, run_s=12.0) == pytest.approx(120.0)


def test_what_only_one_side_came_to_takes_the_other_as_long():
    """The faster side's window reaches the epoch's end, the slower one's does not."""
    reaches = window(turnovers_s=(0.5,), turnovers_at=(80,), epoch_iterations=80, away_s=4.5)
    short = window(epoch_iterations=80)
    an_epoch = pytest.approx(4.0 / (80 * 8))
    assert (
        evaluation_costs(short, reaches) == evaluation_costs(reaches, short) == (an_epoch, an_epoch)
    )
    # one evaluation in 1600 samples
    assert evaluation_costs(short, window(away_s=2.0, interruptions=1)) == (2.0 / 1600, 2.0 / 1600)
    assert evaluation_costs(short, short) is None


def test_both_sides_evaluate_equally_often_however_long_their_windows_are():
    """3 s of evaluation every 250 steps; one window has 368 of them, the other 451."""
    a, b = (Window((0.01,) * n, (8.0,) * n, {}, away_s=3.0, interruptions=1) for n in (368, 451))
    x, y = evaluation_costs(a, b) or (0.0, 1.0)
    assert x == y == pytest.approx(3.0 * 2 / (8 * (368 + 451)))
    slower = dataclasses.replace(b, away_s=6.0)
    assert evaluation_costs(a, slower) == (x, pytest.approx(2 * x))


def test_the_length_of_a_run_that_is_not_known_adds_nothing():
    assert planned_s(window(), run_s=0.0) == pytest.approx(100.0)


def test_an_evaluation_in_the_middle_of_an_epoch_is_its_sides_own():
    """Its own slowness ends the candidate's window before the epoch does."""
    a = Window(
        (0.01,) * 368,
        (8.0,) * 368,
        {},
        away_s=1.0,
        interruptions=1,
        turnovers_s=(0.0,),
        turnovers_at=(300,),
        epoch_iterations=300,
    )
    b = Window((0.01,) * 251, (8.0,) * 251, {}, away_s=6.0, interruptions=1, epoch_iterations=300)
    x, y = evaluation_costs(a, b) or (0.0, 0.0)
    assert y == pytest.approx(6 * x)
