"""PYTHONPATH of a child process that imports the packages and the fake agent."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join(
    map(str, (REPO / "trials", REPO / "search_spaces", REPO / "tests" / "sessions"))
)
