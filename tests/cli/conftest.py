"""A failed test must not leave a run behind: two jobs at once on two cores slow each other down
tenfold.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import end_all


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test() -> Iterator[None]:
    yield
    end_all()
