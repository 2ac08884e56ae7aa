"""Starts the programs: bare, in a fixed session without a knob, in a live session, and under
``autotune run``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogue import HERE, LONG, Program

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import Hello, Record, SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts

PYTHON = Path(os.environ.get("AUTOTUNE_COMPAT_PYTHON") or sys.executable)
STEPS = 50  # minimum, in the runs that are compared
TIMEOUT_S = 240
TUNING_S = 1500
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def python_of(program: Program) -> Path:
    """The interpreter of the program's environment."""
    if not program.environment:
        return PYTHON
    folder = PYTHON.parent.parent
    return folder.with_name(f"{folder.name}-{program.environment}") / "bin" / "python"


@dataclass(frozen=True)
class Place:
    """A folder with the program's files and data."""

    program: Program
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """Changes to this process's environment: the program's own interpreter, and no autotune on
        its path.
        """
        path = os.pathsep.join([str(python_of(self.program).parent), os.environ.get("PATH", "")])
        caches = {
            name: str(self.folder / "caches") for name in ("HF_HOME", "PYSTOW_HOME", "MPLCONFIGDIR")
        }
        return {**OFFLINE, **caches, "PATH": path, "PYTHONPATH": ""}

    def out(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def bare(self, name: str = "bare", steps: int = STEPS) -> float:
        """Run it without autotune to its end; returns the seconds it took."""
        argv, began = self.program.argv(steps, str(self.out(name))), time.perf_counter()
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return time.perf_counter() - began

    def samples(self, steps: int) -> list[int]:
        """Samples of each of the first ``steps`` steps; if they are random, as logged by a bare
        run.
        """
        if not self.program.drawn:
            return self.program.samples(steps)
        if not (self.folder / "bare").exists():
            self.bare()
        return list(self.program.truth(self.out("bare")).samples[:steps])

    @contextmanager
    def session(self, mode: str, length: int, out: str, **config: Any) -> Iterator[Session]:
        """A session of the program, which ends with the block."""
        argv = self.program.argv(length, str(self.out(out)))
        paths = SessionPaths(self.folder / f"session-{out}")
        with Session(
            Command(argv, self.folder, self.variables),
            paths,
            SessionConfig(mode, "", **config),
            timeouts=Timeouts(startup_timeout_s=TIMEOUT_S),
        ) as session:
            yield session
            assert not paths.agent_log.exists(), paths.agent_log.read_text()

    def recorded(self, name: str = "agent", steps: int = STEPS) -> tuple[Hello, Record]:
        """A fixed session without a knob; the job runs to its own end."""
        with self.session("fixed", steps, name, steps=LONG, max_steps=LONG) as session:
            return session.wait_hello(), session.wait_record()

    def tuned(self, text: str) -> dict[str, Any]:
        """Run ``autotune run`` on it; returns result.json."""
        argv = self.program.argv(LONG, "{trial_dir}")
        job = {
            "name": "job",
            "command": argv,
            "env": self.variables,
            "search_space": dict(self.program.space),
        }
        (self.folder / "job.yaml").write_text(json.dumps(job)[:-1] + ", " + text + "}")
        command = [str(Path(sys.executable).parent / "autotune"), "run", "job.yaml", "--quiet"]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=TUNING_S
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return dict(json.loads((self.folder / "autotune-runs" / "job" / "result.json").read_text()))


def settle(program: Program, folder: Path) -> Place:
    """Put the program's files and data into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in program.files:
        shutil.copy(HERE / "programs" / name, folder)
    place = Place(program, folder)
    if program.maker:
        subprocess.run(
            [str(python_of(program)), str(HERE / "makers" / program.maker)],
            cwd=folder,
            env={**os.environ, **place.variables},
            check=True,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    return place


def note(program: Program, part: str, facts: Mapping[str, Any]) -> None:
    """Save observations for the page (see page.py), if one is being made."""
    folder = os.environ.get("AUTOTUNE_COMPAT_RESULTS")
    if folder:
        path = Path(folder) / f"{program.name}.{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "program": program.name,
                    "package": program.package,
                    "what": program.what,
                    **facts,
                },
                indent=1,
            )
        )


def version(program: Program, package: str) -> str:
    """Version of a package in the program's environment."""
    code = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    return subprocess.run(
        [str(python_of(program)), "-c", code, package], capture_output=True, text=True, check=True
    ).stdout.strip()
