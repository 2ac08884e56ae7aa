"""What every test may rely on: the tested environment's programs on PATH, quiet libraries, GPU
tests only with a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests start real commands ("python train.py", "autotune run"): they must find those of this
# environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("MPLBACKEND", "agg")
# No test reads or writes the user's own history of runs; each has one of its own (`own_history`).
_DATA = tempfile.TemporaryDirectory(prefix="autotune-tests-data-")
os.environ["XDG_DATA_HOME"] = _DATA.name
for _name in ("AUTOTUNE_STORE", "AUTOTUNE_TEAM_STORE", "AUTOTUNE_RUNS"):
    os.environ.pop(_name, None)
for _name in (
    "AUTOTUNE_SESSION",
    "AUTOTUNE_MARK",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_NAME",
):
    os.environ.pop(_name, None)

GONE_WITHIN_S = 15.0  # TERM, grace, KILL, and a machine that is busy


@pytest.fixture(autouse=True)
def own_history(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What one test has its runs learn is not known to the next one."""
    number = abs(hash(request.node.nodeid))
    monkeypatch.setenv("XDG_DATA_HOME", str(Path(_DATA.name) / str(number)))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """No power is cut here, and a replayed run writes hundreds of lines, each of which is on the
    disk before the next. In faults/ disks fill up: there, and in processes of their own, they are
    waited for.
    """
    if request.path.parent.name != "faults":
        monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """What this test's runs started, put into memory or locked is gone when it ends. For every test
    of a fault: tests/faults/README.md.
    """
    from leftovers import Surroundings, held

    before = Surroundings.of(tmp_path)
    yield
    deadline = time.monotonic() + GONE_WITHIN_S
    while (
        left := [*Surroundings.of(tmp_path).beyond(before), *held(tmp_path)]
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, "left behind"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_gpu():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_gpu() -> bool:
    """Asked in a process of its own: importing torch here would slow every test run down by a
    second.
    """
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode
        == 0
    )
