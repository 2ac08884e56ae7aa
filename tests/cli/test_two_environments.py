"""The tuner in one environment, the job in another with torch and none of the tuner's packages.

The tuner is this environment's own, or the built wheel as pipx and uv install it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from command_line import PROGRAMS, Job, make_job

ROOT = Path(__file__).parents[2]
TEXT = """\
name: job
command: {command}
env: {{PYTHONPATH: ""}}
traces: none
tracking: {{uri: null}}
search_space: {{num_workers: [0, 4]}}
budget: {{minutes: 4, trials: 1}}
convergence: {{steps: 60}}
"""
# Prints what the job's environment offers before the job runs.
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
    except PackageNotFoundError:  # for another platform or an extra
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
    """The interpreter of a virtual environment with torch and its requirements, as links."""
    home = tmp_path / "job's environment"
    venv.create(home, symlinks=True, with_pip=False)
    there = next(home.glob("lib/python*/site-packages"))
    source = Path(str(distribution("torch").locate_file("")))
    for entry in {entry for entries in needed_by("torch", {}).values() for entry in entries}:
        (there / entry).symlink_to(source / entry)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    done([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)], cwd=ROOT)
    return next(target.glob("*.whl"))


@pytest.fixture(params=["pipx", "uv"])
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts the ``autotune`` that the tool has installed from the wheel on PATH."""
    if request.param == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed (pip install uv)")
    home, programs, pins = tmp_path / "tools", tmp_path / "bin", ROOT / "constraints.txt"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if request.param == "pipx":
        monkeypatch.setenv("PIPX_HOME", str(home))
        monkeypatch.setenv("PIPX_BIN_DIR", str(programs))
        install = [sys.executable, "-m", "pipx", "install", "--python", sys.executable]
        install += [f"--pip-args=-c {pins}"]
    else:
        for name, value in as_uv_has_it().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("UV_TOOL_DIR", str(home))
        monkeypatch.setenv("UV_TOOL_BIN_DIR", str(programs))
        install = ["uv", "tool", "install", "--python", sys.executable, "-c", str(pins)]
        skip_without_torch()
    done([*install, str(wheel)], timeout_s=900)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), os.environ["PATH"]]))
    assert shutil.which("autotune") == str(programs / "autotune")


def as_uv_has_it() -> dict[str, str]:
    """Where this machine's pip finds wheels and certificates: uv does not read pip's settings."""
    settings = done([sys.executable, "-m", "pip", "config", "list"])
    found = dict(re.findall(r"^[^.]+\.([\w-]+)='(.*)'$", settings, re.MULTILINE))
    names = {
        "find-links": "UV_FIND_LINKS",
        "index-url": "UV_DEFAULT_INDEX",
        "cert": "SSL_CERT_FILE",
    }
    return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}


def skip_without_torch() -> None:
    """Skip if uv would not install this environment's torch version."""
    pin = f"torch=={distribution('torch').version}"
    command = ["uv", "pip", "compile", "-", "--quiet", "--python", sys.executable]
    asked = subprocess.run(command, input=pin, capture_output=True, text=True, timeout=300)
    if asked.returncode:
        pytest.skip(f"uv finds no {pin} where it looks: {asked.stderr.strip()[-300:]}")


def done(command: list[str], timeout_s: float = 120, cwd: Path | None = None) -> str:
    """The command's output; the command must succeed."""
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_jobs_environment_needs_torch_alone(python: Path, tmp_path: Path) -> None:
    tuned_with_torch_alone(python, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_installed_tool_tunes_a_job(installed: None, python: Path, tmp_path: Path) -> None:
    tuned_with_torch_alone(python, tmp_path)


def tuned_with_torch_alone(python: Path, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", json.dumps([str(python), "two_gains.py"]), TEXT)
    program = job.folder / "two_gains.py"
    first, rest = (PROGRAMS / "two_gains.py").read_text().split("import argparse", 1)
    program.write_text(f"{first}{LOOK}import argparse{rest}")
    ended = job.run(timeout_s=500)
    assert ended.returncode == 0, ended.stderr
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
    command = ["autotune", "launch", str(job.run_dir)]
    return subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=300)
