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


def asked(minutes: float, iteration_s: float) -> tuple[Any, Any]:
    spec = SimpleNamespace(
        budget=SimpleNamespace(minutes=minutes), convergence=SimpleNamespace(steps=200)
    )
    return SimpleNamespace(spec=spec), SimpleNamespace(
        startup_s=5.0, anatomy=SimpleNamespace(iteration_s=iteration_s)
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
