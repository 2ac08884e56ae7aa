"""Every promise of the README has a test that always runs, as listed in the table in
tests/README.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (.+) \| `([\w/]+\.py::[^`]+)` \|$", re.MULTILINE)
TABLE = ROW.findall((ROOT / "tests" / "README.md").read_text(encoding="utf-8"))


def plain(text: str) -> str:
    return " ".join(text.replace("**", "").split())


# in parentheses: not literally in the README
@pytest.mark.parametrize("promise", [promise for promise, _ in TABLE if promise[0] != "("])
def test_the_readme_says_so(promise: str) -> None:
    assert plain(promise) in plain((ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_tests_are_there_and_run_every_time() -> None:
    """Collected as in `make test`: a missing name is an error, and a test with a mark is
    deselected.
    """
    tests = sorted({f"tests/{test}" for _, test in TABLE})
    assert len(tests) > 30
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    collected = done.stdout.splitlines()
    missing = [
        test
        for test in tests
        if not any(line == test or line.startswith(f"{test}[") for line in collected)
    ]
    assert not missing, "deselected"
