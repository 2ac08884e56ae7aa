"""How the minutes are shared out between the search and the proof."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from autotune.stages.budget import (
    FEWEST_SHARE,
    PAIRS_KEPT,
    SEARCH_SHARE,
    explain_s,
    proof_begins_s,
    search_ends_s,
)
from autotune.stages.measuring.fresh import FEWEST_PAIRS, MIN_SECONDS, pair_s
from autotune.stages.measuring.pairs import PROCESS_PAIRS
from autotune_spaces.knobs.malloc import Malloc


def asked(minutes: float, iteration_s: float, *malloc: str) -> tuple[Any, Any]:
    """``malloc``: the only knob's values."""
    spec = SimpleNamespace(
        budget=SimpleNamespace(minutes=minutes),
        convergence=SimpleNamespace(steps=200),
        search_space={"malloc": Malloc()},
    )
    return SimpleNamespace(spec=spec), SimpleNamespace(
        startup_s=5.0,
        anatomy=SimpleNamespace(iteration_s=iteration_s, minor_faults=0),
        domains={"malloc": malloc},
        defaults={"malloc": "default"},
    )


def test_a_pair_takes_two_starts_and_a_window_of_each_side() -> None:
    context, observation = asked(10, 0.1)
    assert pair_s(context, observation) == 2 * (5.0 + 20.0)
    assert math.isclose(pair_s(context, observation, math.log(4)), 2 * 5.0 + 20.0 + 5.0)
    assert pair_s(context, observation, math.log(100)) == 2 * 5.0 + 20.0 + MIN_SECONDS


def test_a_clear_gain_leaves_the_search_what_its_proof_does_not_need() -> None:
    context, observation = asked(10, 0.1)
    unknown, clear = (proof_begins_s(context, observation, gain) for gain in (0.1, math.log(4)))
    assert unknown == 600 - explain_s(observation) - PAIRS_KEPT * pair_s(context, observation, 0.1)
    assert clear == 600 - explain_s(observation) - FEWEST_PAIRS * pair_s(
        context, observation, math.log(4)
    )
    assert clear > unknown + 150
    assert search_ends_s(context, observation, 100.0, math.log(4)) == min(clear, SEARCH_SHARE * 600)


def test_however_long_a_proof_takes_something_is_searched() -> None:
    context, observation = asked(3, 1.0)
    assert proof_begins_s(context, observation) < 0
    assert search_ends_s(context, observation, 40.0) == 40.0 + FEWEST_SHARE * 180


def test_what_needs_a_new_process_has_time_between_search_and_proof() -> None:
    live, process = asked(20, 0.15, "default", "retain"), asked(20, 0.15, "default", "jemalloc")
    proof_s = proof_begins_s(*live)
    assert proof_s < SEARCH_SHARE * 1200
    assert search_ends_s(*live, 60.0) == proof_s
    assert search_ends_s(*process, 60.0) == proof_s - (PROCESS_PAIRS + 1) * pair_s(*process)
