"""After every fault: no process, nothing in shared memory, no lock. And what other folders' tests use is found from here."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("cli", "stages") if str(Path(__file__).parents[1] / folder) not in sys.path]

from command_line import end_all  # noqa: E402
from faulty_runs import Surroundings, assert_free  # noqa: E402

GONE_WITHIN_S = 15.0  # TERM, grace, KILL, and a machine that is busy


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """The shared check: what this test's runs started, put into memory or locked is gone when it ends."""
    before = Surroundings.of(tmp_path)
    yield
    end_all()
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := Surroundings.of(tmp_path).beyond(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, "left behind"
    for path in [*tmp_path.rglob("journal.jsonl"), *tmp_path.rglob("job.yaml")]:
        assert_free(path if path.name == "journal.jsonl" else path.parent)
