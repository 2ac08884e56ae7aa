"""Whatever a job does to files, everybody's are there again afterwards, and nothing of the job's is left where things are looked after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from session_paths import PYTHONPATH

pytestmark = pytest.mark.usefixtures("nothing_is_left")

JOBS = Path(__file__).with_name("random_jobs.py")


@pytest.mark.parametrize("others", [(), ("others",)], ids=["alone", "while another program writes"])
@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_jobs_that_do_anything_to_files(tmp_path: Path, count: int, others: tuple[str, ...]) -> None:
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "AUTOTUNE_SESSION": str(tmp_path / "config")}  # the agent's log lies beside it
    words = [sys.executable, str(JOBS), str(tmp_path), "0", str(count), *others]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert not (tmp_path / "agent.log").exists()
