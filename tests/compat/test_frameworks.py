"""transformers, accelerate and Lightning, unmodified: the agent records what they log, does not
change a bit, and its knobs take effect.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from catalogue import ACCELERATE, FRAMEWORKS, Program
from checks import seen_as_it_is, switched_for_real
from harness import Place, settle


@pytest.fixture
def place(program: Program, tmp_path: Path) -> Place:
    return settle(program, tmp_path / "job")


@pytest.mark.slow
@pytest.mark.parametrize("program", FRAMEWORKS, ids=lambda program: program.name)
def test_a_framework_is_seen_as_it_logs_itself_and_loses_no_bit(
    program: Program, place: Place
) -> None:
    place.bare()
    hello, record = place.recorded()
    truth = program.truth(place.out("agent"))
    assert truth.said == program.truth(place.out("bare")).said
    seen_as_it_is(program, truth, hello, record)


@pytest.mark.slow
@pytest.mark.parametrize("program", [ACCELERATE], ids=lambda program: program.name)
def test_a_frameworks_knobs_take_hold_in_the_running_job(program: Program, place: Place) -> None:
    """`make compat` tests the other programs."""
    applied = switched_for_real(place)
    assert set(applied.values) >= {"num_workers", "batch_size", "optimizer_impl"}
