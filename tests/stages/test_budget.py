"""How the minutes are divided between the search and the proof."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.executors.base import WALL_S
from autotune.stages.budget import (
    EXPLAIN_S,
    FEWEST_SHARE,
    OF_FIRST_LOOK,
    PAIRS_KEPT,
    SEARCH_SHARE,
    explain_s,
    proof_begins_s,
    search_ends_s,
)
from autotune.stages.measuring.fresh import (
    FEWEST_PAIRS,
    MIN_SECONDS,
    SHORTEST_LIMIT_S,
    FreshRuns,
    later_run_s,
    pair_s,
    rounds,
)
from autotune.stages.measuring.pairs import PROCESS_PAIRS
from autotune_spaces.knobs.malloc import Malloc
from autotune_trials.protocol.messages import Record, Window


def asked(
    minutes: float,
    iteration_s: float,
    *malloc: str,
    lanes: int = 0,
    traces: str = "finalists",
    startup_s: float = 5.0,
    run_s: float = 0.0,
) -> tuple[Any, Any]:
    """(context, observation) of a job whose only knob is ``malloc``, with these values."""
    spec = SimpleNamespace(
        budget=SimpleNamespace(minutes=minutes),
        convergence=SimpleNamespace(steps=200),
        objective="throughput",
        traces=traces,
        search_space={"malloc": Malloc()},
    )
    executor = SimpleNamespace(lanes=lambda: [object()] * lanes if lanes else None)
    return SimpleNamespace(spec=spec, executor=executor), SimpleNamespace(
        startup_s=startup_s,
        run_s=run_s,
        anatomy=SimpleNamespace(iteration_s=iteration_s, minor_faults=0),
        domains={"malloc": malloc},
        defaults={"malloc": "default"},
    )


def test_a_pair_takes_two_starts_and_a_window_of_each_side() -> None:
    context, observation = asked(10, 0.1)
    assert pair_s(context, observation) == 2 * (5.0 + 20.0)
    assert math.isclose(pair_s(context, observation, math.log(4)), 2 * 5.0 + 20.0 + 5.0)
    both = pair_s(context, observation, math.log(4), math.log(4))
    assert math.isclose(both, 2 * 5.0 + 5.0 + 5.0), "a trial on top of what is tuned already"
    assert pair_s(context, observation, math.log(100)) == 2 * 5.0 + 20.0 + MIN_SECONDS
    slow = asked(10, 10.0)  # its windows are cut short
    assert pair_s(*slow) == 2 * (5.0 + SHORTEST_LIMIT_S)


def test_what_a_run_takes_beside_its_start_and_window_counts() -> None:
    """Evaluation at two epoch ends and restoring files: 21 s of the first run's 46."""
    context, observation = asked(10, 0.1, run_s=46.0)
    assert pair_s(context, observation) == 2 * 46.0
    assert math.isclose(pair_s(context, observation, math.log(4)), 2 * 46.0 - 15.0)


def test_an_evaluation_that_only_the_first_run_went_through_is_not_counted_again() -> None:
    """The first run continued for 160 iterations and 120 s of evaluation to reach the second epoch;
    each further run may take 72 s of the 20 minutes.
    """
    window = Window((0.05,) * 400, (8.0,) * 400, {}, turnovers_s=(1.0,), turnovers_at=(300,))
    for away_s, expected_s in ((120.0, 150.0 - 120.0 - 8.0), (10.0, 150.0)):
        first = Record(0, replace(window, away_s=away_s), (), (), notes={WALL_S: 150.0})
        context, _ = asked(20, 0.05)
        context.spec.convergence.steps = 240
        assert math.isclose(later_run_s(context, first), expected_s)


def test_pairs_made_side_by_side_take_the_time_of_one() -> None:
    for lanes, pairs, expected in ((0, 5, 5), (1, 5, 5), (2, 5, 3), (8, 5, 1)):
        context, _ = asked(10, 0.1, lanes=lanes)
        assert rounds(context, pairs) == expected
    alone, many = (proof_begins_s(*asked(10, 0.1, lanes=n)) for n in (1, PAIRS_KEPT))
    assert math.isclose(many - alone, (PAIRS_KEPT - 1) * 50.0)


def test_no_time_is_kept_for_an_explanation_that_is_not_made() -> None:
    assert explain_s(*asked(10, 0.1, traces="none")) == 0.0
    assert explain_s(*asked(10, 0.1)) == 4 * 5.0 + EXPLAIN_S
    assert explain_s(*asked(10, 0.1, startup_s=100.0)) == 2 * 100.0 + EXPLAIN_S


def test_a_clear_gain_leaves_the_search_what_its_proof_does_not_need() -> None:
    context, observation = asked(10, 0.1)
    unknown, clear = (proof_begins_s(context, observation, gain) for gain in (0.1, math.log(4)))
    left = 600 - explain_s(context, observation)
    assert unknown == left - PAIRS_KEPT * pair_s(context, observation, 0.1)
    assert clear == left - FEWEST_PAIRS * pair_s(context, observation, math.log(4))
    assert clear > unknown + 150
    assert search_ends_s(context, observation, 100.0, math.log(4)) == min(clear, SEARCH_SHARE * 600)


def test_however_long_a_proof_takes_something_is_searched() -> None:
    """Found: with 149 s of proof in two minutes, 18 s of search tried nothing but workers."""
    context, observation = asked(3, 1.0)
    assert proof_begins_s(context, observation) < 0
    look_s = FEWEST_PAIRS * pair_s(context, observation)
    assert OF_FIRST_LOOK * look_s > SEARCH_SHARE * 180
    assert search_ends_s(context, observation, 40.0) == 40.0 + SEARCH_SHARE * 180
    context, observation = asked(3, 0.1)
    look_s = FEWEST_PAIRS * pair_s(context, observation)
    assert search_ends_s(context, observation, 40.0) == 40.0 + OF_FIRST_LOOK * look_s
    late_s = 500.0
    assert search_ends_s(*asked(9, 0.1), late_s) == late_s + FEWEST_SHARE * 540


def test_what_needs_a_new_process_has_time_between_search_and_proof() -> None:
    """As long as nothing is found, five pairs of the proof have time."""
    live, process = asked(20, 0.225, "default", "retain"), asked(20, 0.225, "default", "jemalloc")
    proof_s = proof_begins_s(*live, pairs=FEWEST_PAIRS)
    assert proof_s < SEARCH_SHARE * 1200
    assert search_ends_s(*live, 60.0) == proof_s
    assert search_ends_s(*process, 60.0) == proof_s - (PROCESS_PAIRS + 1) * pair_s(*process)
    assert search_ends_s(*process, 60.0, leader={"malloc": "jemalloc"}) == proof_s, "it has it"


def test_no_time_is_kept_for_a_process_that_does_not_fit() -> None:
    context, observation = asked(5, 0.09, "default", "jemalloc")
    proof_s = proof_begins_s(context, observation, pairs=FEWEST_PAIRS)
    fewest_s = OF_FIRST_LOOK * FEWEST_PAIRS * pair_s(context, observation)
    late_s = proof_s - (PROCESS_PAIRS - 1) * pair_s(context, observation) - fewest_s
    assert search_ends_s(context, observation, late_s) == min(proof_s, SEARCH_SHARE * 300)
    early_s = proof_s - (PROCESS_PAIRS + 1) * pair_s(context, observation) - fewest_s
    assert search_ends_s(context, observation, early_s) < proof_s - pair_s(context, observation)


@pytest.mark.parametrize(
    ("away_s", "minutes", "expected_s"),
    [
        (0.0, 1, 3.9),  # three more seconds of training, and some to spare
        (9.0, 1, 0.6),  # each takes ten of wall time: 10 of 16 s are used up
        (15.5, 1, 0.0),
        (15.5, 20, 3.0),  # 72 s are allowed
    ],
)
def test_seconds_of_training_are_not_waited_for_where_most_of_the_time_is_evaluation(
    away_s: float, minutes: float, expected_s: float
) -> None:
    context, _ = asked(minutes, 0.01)
    runs: Any = object.__new__(FreshRuns)
    runs.context, runs.steps = context, 100
    window = Window((0.01,) * 100, (8.0,) * 100, {}, away_s=away_s)
    assert math.isclose(runs._missing_s(Record(0, window, (), ())), expected_s, rel_tol=0.1)


def test_a_side_is_not_measured_again_until_it_is_no_longer_slow_by_itself() -> None:
    """Where nothing else is seen on the machine, waiting for the CPU may be the candidate's doing."""
    calm = Window((0.01,) * 100, (8.0,) * 100, {})
    waits = replace(calm, cpu_pressure=0.9)
    crowded = replace(waits, foreign_load=1.5)
    context = SimpleNamespace(
        out_of_time=lambda: False,
        stop=SimpleNamespace(check=lambda: None),
        note_disturbed=lambda *_: None,
        journal=SimpleNamespace(find=lambda *_: None),
    )
    runs = FreshRuns(context, 240, "confirm1")  # type: ignore[arg-type]

    def repeated(side: str, window: Window) -> int:
        made: list[Record] = []

        def measure() -> tuple[Record]:
            made.append(Record(0, window if not made else calm, (), ()))
            return (made[-1],)

        runs._undisturbed(measure, (f"confirm1-{side}-1000",), ([calm] * 3,))
        return len(made) - 1

    assert repeated("candidate", waits) == 1
    assert [repeated("candidate", waits) for _ in range(3)] == [0, 0, 0]
    assert [repeated("candidate", crowded) for _ in range(3)] == [1, 1, 1]
    assert [repeated("reference", waits) for _ in range(2)] == [1, 1]
