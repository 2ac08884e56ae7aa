"""No fault may leave a process, shared memory or a lock behind. Also puts the helpers of other
folders' tests on the path.
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
    """End the runs of a failed test before the check, so that it shows what ended runs leave
    behind.
    """
    yield
    end_all()
