"""The command line answers immediately if it needs nothing but its arguments."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

AUTOTUNE = str(Path(sys.executable).parent / "autotune")


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    return time.perf_counter() - start


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_answer_at_once(option: str) -> None:
    """0.3 s on a quiet machine; on a loaded one, slowed down as much as a bare interpreter."""
    quiet_interpreter_s = 0.02
    # in turn, so that both have the same load
    taken = [
        (_seconds([sys.executable, "-c", "pass"]), _seconds([AUTOTUNE, option])) for _ in range(7)
    ]
    bare_s, answer_s = (statistics.median(column) for column in zip(*taken, strict=True))
    assert answer_s <= 0.3 * max(1.0, bare_s / quiet_interpreter_s)
