"""The jobs of benchmarks/gpu.py train, small and on the CPU; the measurements need a GPU."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = {
    "conv_net": ["--size", "16", "--batch", "16"],
    "resnet50": ["--size", "32", "--batch", "8", "--width", "4"],
    "gpt": ["--layers", "1", "--width", "16", "--length", "8"],
    "vit": ["--size", "16", "--layers", "1", "--width", "16", "--batch", "8"],
    "diffusion": ["--size", "16", "--width", "16", "--batch", "4"],
    "resnet50_expert": ["--size", "32", "--batch", "8", "--width", "4"],
    "jpeg": ["--size", "32", "--batch", "8", "--width", "4", "--workers", "1", "--files", "10"],
}
# Compiling takes a minute and needs gcc: torch's own variable disables it.
PLAIN = {"PATH": "", "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
# Stands in for `autotune run`: waits to be interrupted the first time, and finishes the second
# time.
STAND_IN = """
import json, pathlib, sys, time
assert sys.argv[1:] == ["run", "job.yaml", "--no-history", "--offline"]
name = json.loads(pathlib.Path("job.yaml").read_text())["name"]
folder = pathlib.Path("autotune-runs") / name
if {waits} and not folder.exists():
    folder.mkdir(parents=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
folder.mkdir(parents=True, exist_ok=True)
result = json.loads({result!r})
(folder / "result.json").write_text(json.dumps({{**result, "name": name}}))
"""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/gpu.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    return gpu


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_each_job_trains_without_anything_of_ours(name: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "gpu_jobs" / f"{name}.py"),
        "--steps",
        "5",
        *SMALL[name],
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=PLAIN, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"step 5 loss \d+\.\d+", done.stdout.splitlines()[-1])
    saved = [path.name for path in tmp_path.glob("samples/*")]
    assert saved == (["000005.png"] if name == "diffusion" else [])


def test_every_job_is_tried_small(gpu: ModuleType) -> None:
    assert tuple(SMALL) == gpu.JOBS


def stand_in(gpu: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    package = folder / "stand-in" / "autotune"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    text = STAND_IN.format(waits=waits, result=json.dumps(RESULT))
    (package / "__main__.py").write_text(text)
    monkeypatch.setattr(gpu, "TUNER", {**os.environ, "PYTHONPATH": str(package.parent)})


def test_the_job_runs_in_the_environment_it_is_given(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(gpu, tmp_path, monkeypatch, waits=False)
    python = "/opt/job env/bin/python"
    result = gpu.tune("gpt", [python, "gpt.py"], tmp_path / "gpt", 3.0)
    assert result == RESULT

    from autotune.job.load import load_job

    spec = load_job(tmp_path / "gpt" / "job.yaml", check=False)
    assert list(spec.command) == [python, "gpt.py"] and spec.budget.minutes == 3.0
    assert spec.env == {"PYTHONPATH": ""}, "nothing of ours is beside the job"


@pytest.mark.slow
def test_a_run_that_is_interrupted_is_carried_on(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(gpu, tmp_path, monkeypatch, waits=True)
    asked = Namespace(
        jobs=["gpt", "vit"],
        results=tmp_path / "kept",
        out=tmp_path / "gpu.md",
        work=tmp_path / "work",
        job_python="python",
        minutes=0.001,
        within=2 / 60,
    )
    assert gpu.run(asked) == 1, "the first was interrupted, the second not begun"
    assert not list(asked.results.iterdir()) and not asked.out.exists()
    assert not (asked.work / "vit").exists()
    asked.within = float("inf")
    asked.jobs = ["gpt"]
    assert gpu.run(asked) == 0
    assert asked.out.read_text() == gpu.page([gpu.figures(RESULT)])
    monkeypatch.setattr(gpu, "tune", None)  # jobs with a result do not run again
    assert gpu.run(asked) == 0


def test_what_was_not_taken_on_a_device_is_not_written(gpu: ModuleType) -> None:
    result = copy.deepcopy(RESULT)
    result["observation"]["job"]["device"] = "cpu"
    with pytest.raises(ValueError, match="gpt trained on cpu"):
        gpu.figures(result)


def test_the_page_has_both_sides_of_what_was_tuned(gpu: ModuleType) -> None:
    tuned = copy.deepcopy(RESULT)
    tuned |= {"name": "vit", "verdict": "tuned", "knobs": {"amp_dtype": "bfloat16"}}
    tuned["speedup"] = {"estimate": 1.9, "low": 1.8, "high": 2.1}
    tuned["confirmation"] = {
        "baseline_anatomy": ANATOMY,
        "anatomy": {"samples_per_s": 160.0, "peak_memory_gib": 20.0},
    }
    tuned["explanation"]["sides"]["winner"] = {"summary": {"mfu": 0.5}, "operators": []}
    text = gpu.page([gpu.figures(tuned), gpu.figures(RESULT)])
    head, _, first, second = text.splitlines()[-4:]
    assert {row.count("|") for row in (head, first, second)} == {13}
    assert first == (
        "| gpt | 80 | 80 | keep | not-needed | none | compute | 30.0 | 41% | 70% | 1 | 3.0 |"
    )
    assert second == (
        "| vit | 80 | 160 | 1.90 (1.80 to 2.10) | not-needed | amp_dtype=bfloat16 | compute "
        "| 30.0 → 20.0 | 41% → 50% | 70% → — | 1 | 3.0 |"
    )
    assert text.count("## ") == 1 and "## a GPU, 16 cores, torch 2.11.0, Python 3.12.3" in text


def test_without_a_device_nothing_is_run() -> None:
    began = time.monotonic()
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "run", "gpt"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("no CUDA device for ")
    assert time.monotonic() - began < 60


ANATOMY = {"samples_per_s": 80.0, "peak_memory_gib": 30.0}
# 10 ms at 0.9 of the roof and 30 ms at 19/30 of it: 28 ms of 40; the third cannot be judged.
OPERATORS = [
    {"of_roof": 0.9, "self_time_s": 0.010},
    {"of_roof": 19 / 30, "self_time_s": 0.030},
    {"of_roof": None, "self_time_s": 9.0},
]
RESULT: dict[str, Any] = {
    "name": "gpt",
    "verdict": "keep-baseline",
    "reason": "nothing is ahead",
    "speedup": {"estimate": 1.0, "low": 1.0, "high": 1.0},
    "loss": {"verdict": "not-needed", "reason": "nothing was changed"},
    "knobs": {},
    "trials": [{}],
    "gains": [],
    "rejected": [],
    "confirmation": None,
    "wall_s": 180.0,
    "observation": {
        "anatomy": ANATOMY,
        "bottleneck": "compute",
        "withdrawn": {},
        "job": {"device": "cuda"},
    },
    "explanation": {
        "sides": {"baseline": {"summary": {"mfu": 0.41}, "operators": OPERATORS}},
        "findings": [],
    },
    "environment": {
        "command": ["python", "gpt.py"],
        "budget": {"minutes": 3.0},
        "machine": {
            "device_name": "a GPU",
            "device_memory_gib": 80.0,
            "torch_version": "2.11.0",
            "cuda_version": "13.0",
            "python_version": "3.12.3",
            "cores": 16,
        },
    },
}
