"""Getting into the process: what is imported, other ``sitecustomize`` modules, and failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_tuner import CNN, INJECT, ROOT, Tuner

SHORT = (
    CNN + "for x, y in loader:\n    criterion(model(x), y).backward();"
    " optimizer.step()\nprint('done')\n"
)


@pytest.fixture(autouse=True)
def _jobs_are_started(tuner: Tuner) -> None:
    tuner.forks = False


def test_importing_the_agent_imports_nothing_heavy() -> None:
    agent = ROOT / "trials" / "autotune_trials"
    modules = [
        ".".join(p.relative_to(agent.parent).with_suffix("").parts)
        for folder in ("agent", "measure")
        for p in (agent / folder).rglob("*.py")
        if "inject" not in p.parts
    ]
    code = f"""
import importlib, sys, json
for name in {modules!r}: importlib.import_module(name)
import autotune
print(json.dumps([m for m in ("torch", "numpy", "yaml", "optuna", "ray", "mlflow", "psutil", "nvtx", "pydantic") if m in sys.modules]))
"""
    path = os.pathsep.join(str(ROOT / p) for p in ("", "trials", "search_spaces"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_a_process_without_torch_loads_next_to_nothing(tuner: Tuner) -> None:
    tuner.start(
        "import sys; print([m for m in sys.modules if m.startswith('autotune')], 'dataclasses' in"
        " sys.modules)",
        "fixed",
    )
    code, out, _ = tuner.finish()
    assert code == 0
    assert "protocol" not in out and out.strip().endswith("False")
    assert tuner.markers() == {"python"}


@pytest.mark.slow
def test_the_environments_own_sitecustomize_runs_too(tuner: Tuner, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.other_was_here = __file__\n")
    source = SHORT + "import sitecustomize; print(other_was_here == sitecustomize.__file__)"
    tuner.start(source, "fixed", env={"PYTHONPATH": f"{INJECT}{os.pathsep}{other}"}, steps=5)
    assert type(tuner.receive()).__name__ == "Hello"
    tuner.receive()
    tuner.close_connection()
    code, out, err = tuner.finish()
    assert (code, out.split()) == (0, ["done", "True"]), err


@pytest.mark.slow
def test_a_job_with_modules_of_our_names(tuner: Tuner) -> None:
    (tuner.directory / "trials.py").write_text("mine = 1\n")
    (tuner.directory / "autotune.py").write_text("mine = 2\n")
    (tuner.directory / "search_spaces").mkdir()
    (tuner.directory / "search_spaces" / "__init__.py").write_text("mine = 3\n")
    source = (
        "import trials, autotune, search_spaces\n"
        + SHORT
        + "print(trials.mine, autotune.mine, search_spaces.mine)"
    )
    tuner.start(source, "fixed", steps=5)
    assert type(tuner.receive()).__name__ == "Hello"
    tuner.receive()
    tuner.close_connection()
    assert tuner.finish()[1].split() == ["done", "1", "2", "3"]


@pytest.mark.slow
def test_looking_torch_up_before_importing_it_does_not_shake_the_agent_off(tuner: Tuner) -> None:
    source = (
        "import importlib.util as u\nassert u.find_spec('torch') and u.find_spec('torch')\n" + SHORT
    )
    tuner.start(source, "fixed", steps=5)
    assert type(tuner.receive()).__name__ == "Hello"


@pytest.mark.slow
def test_an_agent_that_cannot_start_is_not_the_jobs_trouble(tuner: Tuner) -> None:
    tuner.start(SHORT, "no-such-mode")
    code, out, err = tuner.finish()
    assert (code, out.strip(), err) == (0, "done", "")
    assert "no-such-mode" in tuner.log


def test_without_a_session_the_door_only_hands_over(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("AUTOTUNE")} | {
        "PYTHONPATH": str(INJECT)
    }
    code = "import sys; print([m for m in sys.modules if m.startswith('autotune')])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]" and done.stderr == ""


@pytest.mark.slow
def test_markers_show_how_far_the_job_came(tuner: Tuner) -> None:
    tuner.start(SHORT, "fixed", steps=5)
    tuner.receive()
    assert tuner.markers() == {"python", "torch", "loader", "backward", "step"}


@pytest.mark.slow
def test_workers_and_children_do_not_connect(tuner: Tuner) -> None:
    """Spawned DataLoader workers run the whole hook; only the training process connects."""
    source = SHORT.replace(
        "shuffle=True", "shuffle=True, num_workers=1, multiprocessing_context='spawn'"
    )
    source = "if __name__ == '__main__':\n" + "\n".join(
        "    " + line for line in source.splitlines()
    )
    tuner.start(source, "fixed", steps=5)
    hello = tuner.receive()
    assert hello.pid == tuner.process.pid and hello.job.loader.num_workers == 1
