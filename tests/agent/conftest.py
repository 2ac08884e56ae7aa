"""Fixtures for the agent's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_tuner import Tuner


@pytest.fixture
def tuner(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tuner]:
    """With a GPU, a job always starts a new interpreter: CUDA does not survive a fork."""
    directory = tmp_path / "job"
    directory.mkdir()
    tuner = Tuner(directory, forks=request.node.get_closest_marker("gpu") is None)
    yield tuner
    tuner.end()
