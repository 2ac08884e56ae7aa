"""The jobs of benchmarks/gpu.py train, small and on the CPU; what it measures is measured on a GPU only."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = {
    "conv_net": ["--size", "16", "--batch", "16"],
    "resnet50": ["--size", "32", "--batch", "8", "--width", "4"],
    "gpt": ["--layers", "1", "--width", "16", "--length", "8"],
}


@pytest.mark.parametrize("name", SMALL)
def test_each_job_trains_without_anything_of_ours(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu_jobs" / f"{name}.py"), "--steps", "4", *SMALL[name]]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"step 4 loss \d+\.\d+", done.stdout.splitlines()[-1])


def test_the_job_runs_in_the_environment_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = runpy.run_path(str(BENCHMARKS / "gpu.py"))
    ran: list[list[str]] = []

    def autotune(command: list[str], cwd: Path, check: bool) -> None:
        """In the place of `autotune run`: writes the result of a run without a winner."""
        ran.append(command)
        (cwd / "autotune-runs" / "gpt").mkdir(parents=True)
        (cwd / "autotune-runs" / "gpt" / "result.json").write_text(json.dumps(RESULT))

    monkeypatch.setattr(subprocess, "run", autotune)
    result = gpu["tune"]("gpt", "/opt/job env/bin/python", tmp_path / "gpt", 3.0)
    monkeypatch.undo()
    assert ran == [[sys.executable, "-m", "autotune", "run", "job.yaml", "--offline"]]

    from autotune.job.load import load_job

    spec = load_job(tmp_path / "gpt" / "job.yaml", check=False)
    assert list(spec.command) == ["/opt/job env/bin/python", "gpt.py"] and spec.budget.minutes == 3.0
    lines = gpu["page"]([result], 3.0).splitlines()
    assert {line.count("|") for line in lines[4:]} == {12}
    assert lines[-1].startswith("| gpt | 80 | 80 | 1.00 (1.00 to 1.00) | not-needed | none | compute | 30.0 → 30.0 | 41% → ? |")


ANATOMY = {"samples_per_s": 80.0, "peak_memory_gib": 30.0}
RESULT: dict[str, Any] = {
    "name": "gpt", "speedup": {"estimate": 1.0, "low": 1.0, "high": 1.0}, "loss": {"verdict": "not-needed"}, "knobs": {}, "trials": [],
    "observation": {"anatomy": ANATOMY, "bottleneck": "compute"}, "confirmation": None, "wall_s": 180.0,
    "explanation": {"sides": {"baseline": {"summary": {"mfu": 0.41}}}},
    "environment": {"machine": {"device_name": "a GPU", "torch_version": "2.13.0", "cores": 16}},
}  # fmt: skip
