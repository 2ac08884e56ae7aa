"""Defaults of every test: the tested environment's programs on PATH, quiet libraries, GPU tests
only with a GPU.
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

# Tests start real commands ("python train.py", "autotune run"), which must come from this
# environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("MPLBACKEND", "agg")
# Tests must not read or write the user's own history of runs; each has its own (`own_history`).
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

GONE_WITHIN_S = 15.0  # TERM, grace, KILL, on a busy machine


@pytest.fixture(autouse=True)
def own_history(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What the runs of one test learn is not known to the next test."""
    number = abs(hash(request.node.nodeid))
    monkeypatch.setenv("XDG_DATA_HOME", str(Path(_DATA.name) / str(number)))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Make fsync do nothing: a replayed run writes hundreds of lines, each flushed before the next.

    Does not apply in faults/, where disks fill up, or in child processes.
    """
    if request.path.parent.name != "faults":
        monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Nothing that the test's runs started, allocated in shared memory or locked may be left at its
    end.

    Every fault test uses it: tests/faults/README.md.
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


# Files whose tests take longest, first: started last, one of them would be waited for.
LONGEST = (
    "cli/test_whole_run.py",
    "judging/test_judge_command.py",
    "executors/test_ray_run.py",
    "cli/test_profile.py",
    "cli/test_run_failures.py",
    "export/test_patch_end_to_end.py",
    "verdict/test_speedup.py",
    "stages/test_proof.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not str(item.path).endswith(LONGEST))  # stable: the rest as it was
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_gpu():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_gpu() -> bool:
    """Ask in a separate process: importing torch here would add a second to every test run."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode
        == 0
    )
