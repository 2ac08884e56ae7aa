"""The build steps of the images without a container engine: their RUN and COPY instructions, in a
new folder and environment. Steps that need root or Debian's mirrors (users, apt) are left to the
linter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile import Instruction, stages

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def context(folder: Path) -> Path:
    """The files of this repository that the engine would receive."""
    from docker.utils.build import exclude_paths

    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    for name in exclude_paths(str(ROOT), patterns):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


class Build:
    """One image's file system, limited to /src and /opt/venv."""

    def __init__(self, folder: Path) -> None:
        self.context, self.src, self.venv = (
            context(folder / "context"),
            folder / "src",
            folder / "venv",
        )
        self.src.mkdir()
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        self.env["PATH"] = (
            f"{self.venv}/bin{os.pathsep}{Path(sys.executable).resolve().parent}{os.pathsep}{os.environ['PATH']}"
        )

    def carry_out(self, instruction: Instruction) -> None:
        text = (
            re.sub(r"--mount=\S+", "", instruction.text)
            .replace("/opt/venv", str(self.venv))
            .replace("/src", str(self.src))
        )
        match instruction.word:
            case "ENV":
                self.env |= dict(pair.split("=", 1) for pair in text.split())
            case "COPY":
                self.copy(*text.split())
            case "RUN":
                self.run("/bin/sh", "-c", text, cwd=self.src)

    def copy(self, *words: str) -> None:
        *sources, target = words
        assert target in ("./", "."), target
        for source in sources:
            path = self.context / source
            if path.is_dir():
                shutil.copytree(path, self.src, dirs_exist_ok=True)
            else:
                shutil.copy2(path, self.src)

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Runs outside our sources, as in the image, unless ``cwd`` is given."""
        done = subprocess.run(
            list(command),
            cwd=cwd or self.venv,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=1400,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def built(target: str, folder: Path) -> Build:
    found, build = stages(ROOT / "docker" / "Dockerfile"), Build(folder)
    for name in ("build", target):
        for instruction in found[name].instructions:
            build.carry_out(instruction)
    return build


def pinned(build: Build) -> None:
    """Every package is installed in the version given by constraints.txt."""
    wanted = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().split("\n")
        if "==" in line
    )
    listed = (
        build.run("pip", "list", "--format=freeze", "--disable-pip-version-check")
        .lower()
        .replace("_", "-")
        .split()
    )
    installed = dict(line.split("==") for line in listed if "==" in line)
    assert {
        name: version.partition("+")[0]
        for name, version in installed.items()
        if name not in ("pip", "autotune-torch")
    } == {name: wanted.get(name) for name in installed if name not in ("pip", "autotune-torch")}


def test_mlflow_s_image(tmp_path: Path) -> None:
    build = built("build-mlflow", tmp_path)
    pinned(build)
    assert "3." in build.run("mlflow", "--version")
    assert (
        build.run(
            "python",
            "-c",
            "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('psycopg2') is not"
            " None)",
        )
        == "None True\n"
    )


def test_a_node_s_image(tmp_path: Path) -> None:
    build = built("build-node", tmp_path)
    pinned(build)
    assert build.run("autotune", "--version").startswith("autotune ")
    assert str(build.venv) in build.run(
        "python",
        "-c",
        "import autotune, autotune_trials, autotune_spaces, aiohttp_cors, torch;"
        " print(autotune.__file__)",
    )
    assert "ray, version" in build.run("ray", "--version")
