"""Fixtures for the agent's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_tuner import Tuner


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Tuner]:
    directory = tmp_path / "job"
    directory.mkdir()
    tuner = Tuner(directory)
    yield tuner
    tuner.end()
