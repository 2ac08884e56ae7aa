"""A test that fails must not leave a run behind: two jobs at once on two cores slow each other down tenfold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import started


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test() -> Iterator[None]:
    yield
    while started:
        process = started.pop()
        if process.poll() is None:
            process.kill()
            process.wait()
