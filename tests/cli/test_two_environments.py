"""The tuner in one environment, the job in another that has torch and nothing of the tuner's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from command_line import PROGRAMS, Job, make_job

TEXT = """\
name: job
command: {command}
env: {{PYTHONPATH: ""}}
traces: none
tracking: {{uri: null}}
search_space: {{num_workers: [0, 4]}}
budget: {{minutes: 1, trials: 1}}
convergence: {{steps: 60}}
"""
# What the job's environment offers is printed before the job runs.
LOOK = """
import importlib.util, json, sys
ours = "autotune autotune_trials autotune_spaces optuna mlflow pydantic yaml ray psutil".split()
there = [name for name in ours if name not in sys.modules and importlib.util.find_spec(name)]
print(json.dumps(there), file=sys.stderr)
"""


def needed_by(name: str, found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Distribution -> its entries in site-packages, for ``name`` and all that it requires here."""
    try:
        package = distribution(name)
    except PackageNotFoundError:  # for another platform, or an extra
        return found
    found[name] = sorted(
        {
            file.parts[0]
            for file in package.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }
    )
    for requirement in package.requires or ():
        required = re.match(r"[\w.-]+", requirement)
        if required and "extra ==" not in requirement and required[0] not in found:
            needed_by(required[0], found)
    return found


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a virtual environment that has torch and what torch requires, linked."""
    home = tmp_path / "job's environment"
    venv.create(home, symlinks=True, with_pip=False)
    there = next(home.glob("lib/python*/site-packages"))
    source = Path(str(distribution("torch").locate_file("")))
    for entry in {entry for entries in needed_by("torch", {}).values() for entry in entries}:
        (there / entry).symlink_to(source / entry)
    return home / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_jobs_environment_needs_torch_alone(python: Path, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", json.dumps([str(python), "two_gains.py"]), TEXT)
    program = job.folder / "two_gains.py"
    first, rest = (PROGRAMS / "two_gains.py").read_text().split("import argparse", 1)
    program.write_text(f"{first}{LOOK}import argparse{rest}")
    done = job.run(timeout_s=500)
    assert done.returncode == 0, done.stderr
    assert job.result["verdict"] == "tuned" and job.result["knobs"]["num_workers"] == 4
    said = [log.read_text() for log in (job.run_dir / "sessions").glob("*/stderr.log")]
    assert said and all("[]" in text.splitlines() for text in said), (
        "it sees none of the tuner's packages"
    )
    assert not job.left_over()
    launched = launch(job)
    assert launched.returncode == 0, launched.stderr
    assert "[]" in launched.stderr.splitlines()


def launch(job: Job) -> subprocess.CompletedProcess[str]:
    """The tuned job, for one short epoch."""
    program = job.folder / "two_gains.py"
    program.write_text(program.read_text().replace("range(40)", "range(1)"))
    command = [sys.executable, "-m", "autotune", "launch", str(job.run_dir)]
    return subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=120)
