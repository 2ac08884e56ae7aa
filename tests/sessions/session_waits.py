"""Waiting for processes to come and go, with an end to the patience."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune_trials.supervisor import process_tags


def gone_within(seconds: float, mark: str) -> set[int]:
    """Who still carries the mark after at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := process_tags.marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
