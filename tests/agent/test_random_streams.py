"""The job draws the same random numbers, whatever is drawn between saving its streams and restoring
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import pytest
import torch

from autotune_trials.agent.dataloader.random_streams import (
    give_streams_back,
    keep_streams,
    seed_streams,
)


@pytest.fixture(autouse=True)
def streams_of_others() -> Iterator[None]:
    """Restore the streams of the surrounding test run."""
    bits = numpy.random.get_bit_generator()
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    yield
    numpy.random.set_bit_generator(bits)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])


def drawn() -> list[float]:
    """Numbers from every stream, including cached normal ones, and beyond the words in the current
    state.
    """
    return [
        *[random.gauss(0.0, 1.0) for _ in range(3)],
        *[random.random() for _ in range(700)],
        *numpy.random.standard_normal(3).tolist(),
        *numpy.random.random(700).tolist(),
        *torch.rand(700).tolist(),
    ]


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("position", [0, 1, 311, 624, 1000])
def test_the_job_draws_on_as_if_nothing_had_been_drawn(spare: bool, position: int) -> None:
    torch.manual_seed(3), random.seed(3), numpy.random.seed(3)
    for _ in range(position):
        random.getrandbits(32), numpy.random.random_sample(), torch.rand(1)
    if spare:
        random.gauss(0.0, 1.0), numpy.random.standard_normal(), torch.randn(1)
    by_hand = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    expected = drawn()
    torch.set_rng_state(by_hand[0]), random.setstate(by_hand[1]), numpy.random.set_state(by_hand[2])
    for _ in range(3):
        kept = keep_streams()
        seed_streams(2**62 + 5)
        drawn()
        give_streams_back(kept)
    assert drawn() == expected


def test_nested_keeping_gives_back_each_its_own() -> None:
    outer, expected = keep_streams(), drawn()
    inner, expected_inside = keep_streams(), drawn()
    give_streams_back(inner)
    assert drawn() == expected_inside
    give_streams_back(outer)
    assert drawn() == expected


@pytest.mark.parametrize("bits", [numpy.random.MT19937, numpy.random.PCG64])
def test_a_bit_generator_of_the_jobs_own_is_found(bits: type) -> None:
    keep_streams()
    numpy.random.set_bit_generator(bits(7))
    kept, expected = keep_streams(), numpy.random.random(700).tolist()
    give_streams_back(kept)
    assert numpy.random.random(700).tolist() == expected
