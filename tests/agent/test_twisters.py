"""Random streams kept and given back as memory: what the public functions would have done, and theirs where memory is not as thought."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import pytest
import torch

from autotune_trials.agent.snapshots import mersenne_twister
from autotune_trials.agent.snapshots.mersenne_twister import (
    NumpyTwister,
    PublicStream,
    PythonTwister,
    numpy_stream,
    python_stream,
)
from autotune_trials.agent.snapshots.random_streams import give_streams_back, keep_streams, seed_streams


@pytest.fixture(autouse=True)
def streams_of_others() -> Iterator[None]:
    """The streams go back to whoever runs these tests."""
    bits = numpy.random.get_bit_generator()
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    yield
    numpy.random.set_bit_generator(bits)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])


def drawn() -> list[float]:
    """Numbers of every stream, the spare normal ones among them, and beyond the words that are there."""
    return [
        *[random.gauss(0.0, 1.0) for _ in range(3)], *[random.random() for _ in range(700)],
        *numpy.random.standard_normal(3).tolist(), *numpy.random.random(700).tolist(), *torch.rand(700).tolist(),
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


def test_memory_is_read_with_the_versions_installed_here() -> None:
    assert type(python_stream()) is PythonTwister
    assert type(numpy_stream(numpy)) is NumpyTwister


def test_nested_keeping_gives_back_each_its_own() -> None:
    outer, expected = keep_streams(), drawn()
    inner, expected_inside = keep_streams(), drawn()
    give_streams_back(inner)
    assert drawn() == expected_inside
    give_streams_back(outer)
    assert drawn() == expected


@pytest.mark.parametrize("wrong", ["I623iI", "625I", "624I", "Q312Q"])
def test_another_layout_is_noticed_and_the_public_functions_used(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setattr(mersenne_twister, "PYTHON_STATE", f"{mersenne_twister.WORDS}Ii" if wrong == "625I" else wrong)
    monkeypatch.setattr(mersenne_twister, "NUMPY_STATE", f"i{mersenne_twister.WORDS}I" if wrong == "625I" else wrong)
    found = python_stream(), numpy_stream(numpy)
    assert [type(stream) for stream in found] == [PublicStream, PublicStream]
    kept = [stream.keep() for stream in found]
    expected = random.gauss(0.0, 1.0), numpy.random.standard_normal()
    for stream, state in zip(found, kept, strict=True):
        stream.give_back(state)
    assert (random.gauss(0.0, 1.0), numpy.random.standard_normal()) == expected


def test_a_spare_number_that_lies_nowhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mersenne_twister, "NUMPY_SPARE", "dd")
    assert type(numpy_stream(numpy)) is PublicStream


def test_without_the_interpreters_lock_no_memory_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    assert [type(stream) for stream in (python_stream(), numpy_stream(numpy))] == [PublicStream, PublicStream]


@pytest.mark.parametrize("bits", [numpy.random.MT19937, numpy.random.PCG64])
def test_a_bit_generator_of_the_jobs_own_is_found(bits: type) -> None:
    keep_streams()
    numpy.random.set_bit_generator(bits(7))
    kept, expected = keep_streams(), numpy.random.random(700).tolist()
    give_streams_back(kept)
    assert numpy.random.random(700).tolist() == expected


def test_a_bit_generator_that_comes_back_is_read_as_memory_again() -> None:
    mine = numpy.random.get_bit_generator()
    for bits, kind in ((mine, NumpyTwister), (numpy.random.PCG64(7), PublicStream), (mine, NumpyTwister)):
        numpy.random.set_bit_generator(bits)
        assert type(keep_streams()[2]) is kind
