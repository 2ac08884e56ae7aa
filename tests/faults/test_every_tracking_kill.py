"""The tuner is killed after every single MLflow request, before it gets the answer (short version:
tests/tracking/test_unreliable_tracking.py).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tracking"))

from server_processes import ENV, a_port, mlflow_server
from small_study import record
from test_unreliable_tracking import _SENDS, check_on_record, killed_after
from unreliable_server import unreliable

from autotune.tracking import open_tracker, sync

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("server"), a_port()) as uri:
        yield uri


def test_killed_after_every_request(server: str, tmp_path: Path) -> None:
    position = 0
    with unreliable(server) as between:
        killed = True
        while killed:
            position += 1
            run_dir, experiment = tmp_path / f"at {position}" / "digits", f"killed at {position}"
            run_dir.mkdir(parents=True)
            record(open_tracker(between.uri, experiment, run_dir, offline=True), run_dir)
            killed = killed_after(between, run_dir, position)
            sync(run_dir)
            check_on_record(server, experiment, run_dir)
    assert position > 12, "the study makes so many requests"


def test_killed_at_thirty_random_moments_in_a_row(server: str, tmp_path: Path) -> None:
    """One record, sent by thirty processes in a row."""
    moments = random.Random(5)
    run_dir, experiment = tmp_path / "digits", "killed at random"
    run_dir.mkdir(parents=True)
    with unreliable(server) as between:
        # slow enough for thirty kills to hit it at work
        between.rule = lambda request: time.sleep(0.2) or "pass"
        record(open_tracker(between.uri, experiment, run_dir, offline=True), run_dir)
        for _ in range(30):
            process = subprocess.Popen(
                [sys.executable, "-c", _SENDS, str(run_dir)], env=ENV, stderr=subprocess.DEVNULL
            )
            already = len(between.seen)
            while len(between.seen) == already and process.poll() is None:
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 1.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
        between.rule = lambda request: "pass"
        sync(run_dir)
        check_on_record(server, experiment, run_dir)
