"""The GPU tests run with the Python of a GPU machine that has torch and few of the tuner's
dependencies.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LACKING = ("optuna", "mlflow", "ray", "pydantic", "nvtx", "pynvml")
COLLECT = f"""
import sys
sys.modules.update(dict.fromkeys({LACKING}))  # None there: importing it fails
import pytest
sys.exit(pytest.main(["-q", "-o", "addopts=", "-m", "gpu", "--collect-only", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_they_are_collected_without_what_only_the_tuner_needs() -> None:
    files = [
        f
        for f in sorted(TESTS.rglob("test_*.py"))
        if "mark.gpu" in f.read_text("utf-8") and f != Path(__file__)
    ]
    assert len(files) >= 7
    words = [sys.executable, "-c", COLLECT, *map(str, files)]
    done = subprocess.run(words, cwd=TESTS.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    for file in files:
        assert f"{file.relative_to(TESTS.parent)}::" in done.stdout, "it has no GPU test"
