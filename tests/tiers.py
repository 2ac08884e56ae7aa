"""Marks for single cases of a table. Whole tests are marked in the usual way."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any, id: str | None = None) -> Any:
    """A case that `make slow` runs and `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)
