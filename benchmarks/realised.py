"""Is the reported speed-up real? Each job of ``benchmarks/regret`` is tuned, then run bare and by
``autotune launch`` in turns, timed by the job's own clock with no agent measuring.

    python benchmarks/realised.py [--only JOB …] [--minutes 5] [--turns 3]

(Takes an hour and a half on a quiet machine.) A process runs until it has printed a few epochs; the
first one, which includes start-up, compilation and filling the queues, is left out. Measurements
are kept in build/realised, and the page is made from all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "regret"))

from jobs_table import ROOT, job_file, scripts
from pages import write_page

BUILD = ROOT / "build" / "realised"
PAGE = Path(__file__).with_suffix(".md")
NOTES = "## Where they differ"  # this and what follows is written by hand and kept
JOBS = [job for job in scripts() if job != "digits"]  # digits prints no times: see patched.py
SECONDS, EPOCHS = 10.0, 2  # per process at least, after its first epoch
EACH_MS = re.compile(rb"([\d.]+) ms an iteration")


def measure(job: str, minutes: float, turns: int) -> dict[str, Any]:
    """The reported speed-up, and ms per iteration of bare and launched processes."""
    folder = BUILD / job
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(job_file(job), folder / "job.yaml")
    (folder / "work").mkdir()
    env = {**os.environ, "AUTOTUNE_STORE": str(folder / "history.db")}
    run = [sys.executable, "-m", "autotune", "run", "job.yaml", "--minutes", f"{minutes:g}"]
    began = time.monotonic()
    subprocess.run(run, cwd=folder, env=env, check=True)
    took_s = time.monotonic() - began
    folder_of_run = folder / "autotune-runs" / job
    result = json.loads((folder_of_run / "result.json").read_text())
    sides = {
        "bare": json.loads((folder / "job.yaml").read_text())["command"],
        "launched": [sys.executable, "-m", "autotune", "launch", str(folder_of_run), "--quiet"],
    }
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(turns if result["verdict"] == "tuned" else 0):
        for side in sides if number % 2 == 0 else reversed(sides):
            taken[side].append(each_ms(sides[side], folder / "work", env))
            print(f"{job}: {side} {taken[side][-1]:.2f} ms an iteration", flush=True)
    found = {key: result[key] for key in ("verdict", "knobs", "speedup", "reason")}
    found |= {"minutes": took_s / 60, "taken": taken}
    (folder / "found.json").write_text(json.dumps(found, indent=1))
    return found


def each_ms(command: list[str], folder: Path, env: dict[str, str]) -> float:
    """Mean over the epochs of a new process, without the first."""
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        epochs: list[float] = []
        began = 0.0
        for line in process.stdout:
            if match := EACH_MS.search(line):
                epochs.append(float(match[1]))
                began = began or time.monotonic()
            if len(epochs) > EPOCHS and time.monotonic() - began > SECONDS:
                break
        process.terminate()
    return fmean(epochs[1:])


def row(job: str, found: dict[str, Any]) -> tuple[list[str], bool | None]:
    """Cells, and whether the speed-up lies in the reported interval; None: none was reported."""
    cells = [job, f"{found['minutes']:.1f} min"]
    if found["verdict"] != "tuned":
        return [*cells, f"{found['verdict']}: {found['reason']}", "", "", ""], None
    knobs = ", ".join(f"{name}={value}" for name, value in found["knobs"].items())
    said, taken = found["speedup"], found["taken"]
    ratios = [bare / ours for bare, ours in zip(taken["bare"], taken["launched"], strict=True)]
    inside = bool(said["low"] <= median(ratios) <= said["high"])
    reported = f"{said['estimate']:.2f}× ({said['low']:.2f} to {said['high']:.2f})"
    realised = f"{median(ratios):.2f}× ({min(ratios):.2f} to {max(ratios):.2f})"
    off = f"{said['estimate'] / median(ratios) - 1:+.1%}"
    return [*cells, knobs, reported, realised, off], inside


def page() -> None:
    rows, inside = [], []
    for job in JOBS:
        path = BUILD / job / "found.json"
        if path.exists():
            cells, fits = row(job, json.loads(path.read_text()))
            rows.append(cells)
            inside += [] if fits is None else [fits]
    columns = [
        "job",
        "took",
        "answer",
        "reported (95 %)",
        "realised (range)",
        "reported too high by",
    ]
    head = [
        "# Reported and realised",
        "",
        "Made by `python benchmarks/realised.py`: each job tuned, then bare and launched in turns,"
        " by the job's own clock.",
        "",
        f"**{sum(inside)} of {len(inside)} realised speed-ups lie in the reported interval.**",
    ]
    write_page(PAGE, head, columns, rows, NOTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    for job in options.only:
        print(json.dumps(measure(job, options.minutes, options.turns)), flush=True)
        page()


if __name__ == "__main__":
    main()
