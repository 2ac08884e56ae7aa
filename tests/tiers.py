"""Marks for single cases of a parametrization. Whole tests use ordinary marks."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any, id: str | None = None) -> Any:
    """A case that runs in `make slow` but not in `make test`."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)
