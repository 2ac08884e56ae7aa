"""Runs the real command on a real job, for the tests in this folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[1] / "programs"
QUICK = """\
name: job
command: {command}
traces: none
tracking: {{uri: null}}
search_space: {{amp_dtype: auto, optimizer_impl: auto, intra_op_threads: auto}}
budget: {{minutes: 1, trials: 3}}
"""


# conftest.py ends them after each test, even if the test fails
started: list[subprocess.Popen[str]] = []


def end_all() -> None:
    """Kill the runs that a test has left behind."""
    while started:
        process = started.pop()
        if process.poll() is None:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Job:
    """A copy of tests/programs with a job.yaml."""

    folder: Path

    @property
    def run_dir(self) -> Path:
        return self.folder / "autotune-runs" / "job"

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "result.json").read_text())

    def journal(self) -> list[dict[str, Any]]:
        """Its whole entries: the last one may be half written while the tuner runs."""
        path = self.run_dir / "journal.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def start(self, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["autotune", "run", "job.yaml", "--quiet", *options],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    def run(self, *options: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        process = self.start(*options)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def left_over(self) -> list[int]:
        """Processes that still work for this job: their environment contains its folder and
        AUTOTUNE_MARK.
        """
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if (
                    str(self.folder).encode() in (entry / "environ").read_bytes()
                    and b"AUTOTUNE_MARK" in (entry / "environ").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


def make_job(folder: Path, command: str, text: str = QUICK) -> Job:
    shutil.copytree(PROGRAMS, folder)
    (folder / "job.yaml").write_text(text.format(command=command))
    return Job(folder)


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.05)
