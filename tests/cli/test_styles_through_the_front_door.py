"""Loop styles of tests/programs, unmodified, through the command line: what the agent must
recognize, and what it must leave alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAMS, QUICK, Job, make_job

pytestmark = pytest.mark.slow  # run every time: test_loop_styles.py, test_whole_run.py

Seen = dict[str, Any]
TEXT = QUICK.replace(
    "{{amp_dtype: auto, ", "{{amp_dtype: auto, num_workers: [0, 1], compile_mode: auto, "
).replace("trials: 3", "trials: 1")


def tune(program: str, tmp_path: Path) -> tuple[Job, subprocess.CompletedProcess[str]]:
    """A short ``autotune run`` on a copy of the programs: one trial, no tracking."""
    job = make_job(tmp_path / "a job's own place", f"python {program}.py", TEXT)
    return job, job.run()


def observed(program: str, tmp_path: Path) -> Seen:
    job, finished = tune(program, tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert job.result["verdict"] in ("tuned", "keep-baseline")
    assert not job.left_over()
    there = {p.name for p in job.folder.iterdir()} - {p.name for p in PROGRAMS.iterdir()}
    assert there <= {"job.yaml", "autotune-runs", "__pycache__"}, "what trials make is removed"
    return {**job.result["observation"], "written": job.result["written"]}


def line_of(program: str, text: str) -> str:
    lines = (PROGRAMS / f"{program}.py").read_text().splitlines()
    return f"{program}.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def own_modules(seen: Seen) -> None:
    assert seen["job"]["loader"]["batch_size"] == 32
    assert seen["job"]["loader"]["length"] == 16


def own_autocast(seen: Seen) -> None:
    assert seen["job"]["own_autocast"] == "bfloat16"
    assert "autocast" in seen["withdrawn"]["amp_dtype"]


def own_scaler(seen: Seen) -> None:
    assert seen["job"]["own_scaler"]
    assert "amp_dtype" in seen["withdrawn"]


def own_compile(seen: Seen) -> None:
    assert seen["job"]["own_compile"]
    assert "compile" in seen["withdrawn"]["compile_mode"]


def accumulation(seen: Seen) -> None:
    assert seen["job"]["backwards_per_step"] == 4
    assert seen["job"]["loader"]["batch_size"] == 8


def several_optimizers(seen: Seen) -> None:
    assert [o["name"] for o in seen["job"]["optimizers"]] == ["Adam", "Adam"]
    assert seen["job"]["backwards_per_step"] == 3


def validation(seen: Seen) -> None:
    assert seen["job"]["loader"]["site"].endswith(
        line_of("validation", "training_loader = DataLoader")
    )
    assert seen["job"]["loader"]["batch_size"] == 32


def iterable(seen: Seen) -> None:
    assert seen["job"]["loader"]["iterable"]
    assert "num_workers" in seen["withdrawn"], "two workers would deliver every sample twice"


def no_loader(seen: Seen) -> None:
    assert seen["job"]["loader"] is None
    assert seen["job"]["sample_unit"] == "iterations"
    assert "DataLoader" in seen["withdrawn"]["num_workers"]
    assert seen["ceiling"] is None


def closure(seen: Seen) -> None:
    assert [o["name"] for o in seen["job"]["optimizers"]] == ["LBFGS"]


def checkpoints(seen: Seen) -> None:
    assert seen["written"]["removed"] == ["checkpoints"]
    assert not seen["written"]["failed"] and not seen["written"]["noticed"]


def in_general(seen: Seen) -> None:
    assert seen["job"]["optimizers"]


def without_optimizer(seen: Seen) -> None:
    assert seen["job"]["optimizers"] == []
    assert "optimizer_impl" not in seen["domains"]


CASES = [  # program, its special facts, samples per step
    ("own_modules", own_modules, 32),
    ("own_autocast", own_autocast, 32),
    ("own_scaler", own_scaler, 32),
    ("own_compile", own_compile, 32),
    ("accumulation", accumulation, 32),
    ("no_sync", accumulation, 32),
    ("several_optimizers", several_optimizers, 32),
    ("validation", validation, 32),
    ("evaluation_on_training_data", in_general, 32),
    ("iterable", iterable, 32),
    ("sharded_stream", in_general, 32),
    ("batch_sampler", in_general, 24),
    ("nested_batches", in_general, 20),
    ("variable_length", in_general, 16),
    ("two_loaders", in_general, 32),
    ("turns", in_general, 24),
    ("no_loader", no_loader, 1),
    ("rollouts", in_general, 1),
    ("closure", closure, 128),
    ("manual_marks", without_optimizer, 32),
    ("by_hand", without_optimizer, 32),
    ("functional", without_optimizer, 32),
    ("raw_tensors", without_optimizer, 1),
    ("checkpoints", checkpoints, 32),
    ("spawned", in_general, 32),
    ("notebook", in_general, 32),
    ("looks", in_general, 32),
    ("ppo_buffer", in_general, 200),
    ("distillation", in_general, 32),
    ("gradient_cache", in_general, 64),
    ("cached_loss", in_general, 64),
]


@pytest.mark.parametrize(
    ("program", "check", "samples_per_step"), CASES, ids=[case[0] for case in CASES]
)
def test_the_agent_sees_the_job_as_it_is(
    program: str, check: Callable[[Seen], None], samples_per_step: int, tmp_path: Path
) -> None:
    seen = observed(program, tmp_path)
    check(seen)
    assert seen["job"]["samples_per_step"] == pytest.approx(
        samples_per_step, rel=0.2 if check is in_general else 0.01
    )
    assert sum(seen["anatomy"]["phases_s"].values()) == pytest.approx(
        seen["anatomy"]["iteration_s"], rel=0.25
    )


def test_a_loop_no_hook_can_see_is_told_the_two_lines_it_needs(tmp_path: Path) -> None:
    _, finished = tune("fresh_leaves", tmp_path)
    assert finished.returncode == 4
    assert "import autotune" in finished.stderr and "autotune.step(" in finished.stderr
    assert "Traceback" not in finished.stderr
