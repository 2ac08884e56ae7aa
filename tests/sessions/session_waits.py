"""Waiting for processes to start and end, with a timeout."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune_trials.supervisor import process_tags


def gone_within(seconds: float, mark: str) -> set[int]:
    """The processes that still have the tag after at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := process_tags.marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
