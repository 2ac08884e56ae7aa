"""Run by `make wheel` with the interpreter of a fresh environment: is the installed package
consistent?
"""

from __future__ import annotations

import importlib.resources
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    prefix = Path(sys.prefix)
    for package in ("autotune", "autotune_trials", "autotune_spaces"):
        home = Path(str(importlib.resources.files(package)))
        assert prefix in home.parents, (
            f"{package} comes from {home}, not from the fresh environment"
        )
    spaces = importlib.resources.files("autotune_spaces") / "presets"
    presets = {entry.name for entry in spaces.iterdir()}
    assert {
        "auto.yaml",
        "cpu.yaml",
        "cuda.yaml",
        "quick.yaml",
        "thorough.yaml",
        "loader.yaml",
    } <= presets, presets
    inject = importlib.resources.files("autotune_trials") / "agent" / "bootstrap" / "inject"
    assert [e.name for e in inject.iterdir() if e.name != "__pycache__"] == ["sitecustomize.py"]
    assert json.loads(run("schema"))["properties"]
    assert run("--version").startswith("autotune ")
    assert "num_workers" in run("knobs")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text("import torch\n")
        run("init", "--", sys.executable, "train.py", cwd=folder)
        assert json.loads(run("check", "--json", "job.yaml", cwd=folder))["knobs"]
    print(f"the wheel works in {prefix}")


def run(*arguments: str, cwd: str | None = None) -> str:
    command = [str(Path(sys.prefix, "bin", "autotune")), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main()
