"""The system clock may be set during a run: no measurement depends on it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_runs import SEARCHED, faulty_job, trials_of, whole_entries

REPO = Path(__file__).parents[2]
PACKAGES = ("autotune", "trials/autotune_trials", "search_spaces/autotune_spaces")
# Uses of a date, not a duration.
DATES = {
    "autotune/export/tuned.py": "when tuned.yaml was written",
    "autotune/tracking/spool.py": "when an event happened, which MLflow shows",
    "autotune/tracking/mlflow.py": (
        "until when a request that was given up may still arrive; kept for the next process, which"
        " may come after a reboot"
    ),
    "autotune/history/use.py": "when a run ended, kept in the history",
    "autotune/cli/jobs.py": "compared with the date at which a cluster says that a job began",
    "trials/autotune_trials/agent/observers/compiles.py": (
        "compared with the dates dynamo gives its own compilations"
    ),
}
CLOCKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
}
# Jumps by a day back and forth every two seconds. Other sitecustomize modules still run after it.
JUMPING = """
import time
_real, _began = time.time, time.monotonic()
def jumping():
    return _real() + (86400 if int((time.monotonic() - _began) / 2) % 2 else -86400)
time.time, time.time_ns = jumping, lambda: int(jumping() * 1e9)
"""


def clocks_read() -> Iterator[tuple[str, int]]:
    for package in PACKAGES:
        for path in (REPO / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(
                    node.value, (ast.Name, ast.Attribute)
                ):
                    owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                    if (owner, node.attr) in CLOCKS:
                        yield str(path.relative_to(REPO)), node.lineno
                if (
                    isinstance(node, ast.ImportFrom)
                    and node.module == "time"
                    and {a.name for a in node.names} & {"time", "time_ns"}
                ):
                    yield str(path.relative_to(REPO)), node.lineno


def test_the_systems_clock_is_read_for_dates_only() -> None:
    read = list(clocks_read())
    assert [f"{path}:{line}" for path, line in read if path not in DATES] == []
    assert {path for path, _ in read} == set(DATES), "the list above is current"


@pytest.mark.faults
def test_a_clock_that_jumps_changes_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPING)
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(tmp_path / "clock"), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        ),
    )
    job = faulty_job(tmp_path / "job", "assert time.time.__name__ == 'jumping'", text=SEARCHED)
    done = job.run()
    assert done.returncode == 0, done.stderr
    elapsed = [e["elapsed_s"] for e in whole_entries(job)]
    assert elapsed == sorted(elapsed) and elapsed[-1] < 200
    result = job.result
    assert 0 < result["wall_s"] < 200 and 0 < result["observation"]["startup_s"] < 60
    assert 0.01 < result["observation"]["anatomy"]["iteration_s"] < 0.1
    assert all(
        0 < t["wall_s"] < 100 and t["state"] in ("complete", "pruned") for t in trials_of(job)
    )
