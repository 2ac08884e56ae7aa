"""Every live knob, switched on and off by the agent in a real training process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from knob_settings import SETTINGS

from autotune_spaces.base import Scope
from autotune_spaces.knobs import get, names

KNOBS = [
    n for n in names() if (get(n).scope is Scope.LIVE or get(n).live_values) and n != "compile_mode"
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    here = Path(__file__).parent
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    program = [
        sys.executable,
        str(here / "switched_by_the_agent.py"),
        str(tmp_path_factory.mktemp("session")),
    ]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", KNOBS)
def test_there_and_back(report: dict[str, Any], name: str) -> None:
    row = report[name]
    assert row["own"] == SETTINGS[name].own
    assert row["changed"] != row["before"], "the job sees no difference"
    assert row["again"] == row["changed"], "twice is not once"
    assert row["after"] == row["before"], "not restored"


def test_what_the_job_sees(report: dict[str, Any]) -> None:
    assert report["num_workers"]["changed"]["workers"]
    assert not report["num_workers"]["after"]["workers"]
    assert report["batch_size"]["changed"]["batch"] == 16
    assert report["batch_size"]["changed"]["lr"] == pytest.approx(2e-3)
    assert report["batch_size"]["after"]["lr"] == 1e-3
    assert report["amp_dtype"]["changed"]["output"] == "torch.bfloat16"
    assert report["amp_dtype"]["after"]["output"] == "torch.float32"
    assert report["intra_op_threads"]["changed"]["threads"] == 1
    assert report["channels_last"]["changed"]["strides"][0] == [27, 1, 9, 3]


def test_effects_are_told_apart(report: dict[str, Any]) -> None:
    for name in (
        "num_workers",
        "batch_size",
        "amp_dtype",
        "channels_last",
        "optimizer_impl",
        "intra_op_threads",
    ):
        assert report[name]["effect"] is None
    if report["pin_memory"]["values"] == "only for CUDA, and the job trains on cpu":
        assert "CUDA" in report["pin_memory"]["effect"]


@pytest.mark.slow
def test_process_knobs_that_torch_does_not_read_are_set_at_import(tmp_path: Path) -> None:
    session = tmp_path / "session.json"
    session.write_text(json.dumps({"mode": "launch", "directory": str(tmp_path)}))
    inject = (
        Path(__file__).parents[2] / "trials" / "autotune_trials" / "agent" / "bootstrap" / "inject"
    )
    environ = {**os.environ, "PYTHONPATH": str(inject), "AUTOTUNE_SESSION": str(session)}
    program = [sys.executable, "-c", "import torch; print(torch.backends.cudnn.benchmark)"]
    for value in (True, False):
        variables = get("cudnn_benchmark").environment(value)
        done = subprocess.run(
            program, env={**environ, **variables}, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == str(value), done.stderr
    log = tmp_path / "agent.log"
    assert not log.exists() or "Traceback" not in log.read_text()
