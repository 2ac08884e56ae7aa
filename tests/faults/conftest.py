"""After every fault: no process, nothing in shared memory, no lock. And what other folders' tests
use is found from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).parents[1] / folder)
    for folder in ("cli", "stages")
    if str(Path(__file__).parents[1] / folder) not in sys.path
]

from command_line import end_all  # noqa: E402


@pytest.fixture(autouse=True)
def _after_every_fault(nothing_is_left: None) -> Iterator[None]:
    """Runs of a test that failed are ended first, so that the check tells what ended runs leave."""
    yield
    end_all()
