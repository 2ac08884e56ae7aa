"""Whatever a job does to files, those it did not create exist again afterwards or are reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from session_paths import PYTHONPATH

pytestmark = pytest.mark.usefixtures("nothing_is_left")

JOBS = Path(__file__).with_name("random_jobs.py")


@pytest.mark.parametrize(
    "count", [60, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_no_job_loses_a_file_it_has_not_made(tmp_path: Path, count: int) -> None:
    # the agent's log would be next to it
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "AUTOTUNE_SESSION": str(tmp_path / "config")}
    words = [sys.executable, str(JOBS), str(tmp_path), str(count)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert not (tmp_path / "agent.log").exists()
