"""Does training take as long as the report predicts? Eight programs are tuned, then run to the end:
bare, launched without compiled kernels, and launched again.

    python benchmarks/time_to_train.py [--only JOB …] [--minutes 3] [--rounds 1]

(Takes an hour on a quiet machine.) Measurements are kept in build/time_to_train; the page is made
from all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pages import write_page

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "time_to_train"
PAGE = Path(__file__).with_suffix(".md")
NOTES = "## Where they are not"  # this and what follows is written by hand and kept
WITHIN = 0.05  # of the time it took: the allowed error of a prediction
SIDES = ("before", "after", "cold")  # TrainingTime's fields without "_s"


@dataclass(frozen=True)
class Program:
    script: str
    epochs: int
    steps: int  # per epoch


def regret(name: str, epochs: int, steps: int) -> Program:
    return Program(f"benchmarks/regret/jobs/{name}.py", epochs, steps)


PROGRAMS = {
    "digits": Program("examples/digits/train.py", 70, 24),
    "conv": regret("conv", 80, 48),
    "conv_no_eval": regret("conv_no_eval", 40, 28),
    "embedding_heavy": regret("embedding_heavy", 16, 250),
    "epoch_end_bound": regret("epoch_end_bound", 300, 6),
    "loader_waits": regret("loader_waits", 3, 250),
    "tiny_batches": regret("tiny_batches", 20, 500),
    "transformer": regret("transformer", 8, 256),
}


def autotune(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "autotune", *arguments]


def measure(name: str, minutes: float, rounds: int) -> dict[str, Any]:
    """Predicted and actual seconds."""
    program, folder = PROGRAMS[name], BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, str(ROOT / program.script), "--epochs", str(program.epochs)]
    job = {
        "name": name,
        "command": command,
        "search_space": "auto",
        "objective": "time_to_train",
        "planned_steps": program.epochs * program.steps,
        "tracking": {"uri": "none"},
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    env = {**os.environ, "AUTOTUNE_STORE": str(folder / "history.db")}
    subprocess.run(
        autotune("run", "job.yaml", "--minutes", f"{minutes:g}"), cwd=folder, env=env, check=True
    )
    run = folder / "autotune-runs" / name
    result = json.loads((run / "result.json").read_text())
    predicted = (result["confirmation"] or {}).get("training")
    taken: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds if predicted else 0):
        kernels = {**env, "TORCHINDUCTOR_CACHE_DIR": str(folder / f"kernels-{number}")}
        launch = autotune("launch", str(run / "tuned.yaml"), "--quiet")
        turns = [("before", command, env)]
        if result["verdict"] == "tuned":
            turns += [("cold", launch, kernels), ("after", launch, kernels)]
        for side, words, variables in turns if number % 2 == 0 else [*turns[1:], turns[0]]:
            began = time.monotonic()
            subprocess.run(words, cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
            taken[side].append(time.monotonic() - began)
            print(f"{name}: {side} took {taken[side][-1]:.1f} s", flush=True)
    found = {
        "verdict": result["verdict"],
        "knobs": result["knobs"],
        "speedup": result["speedup"],
        "first_epoch_only": (result["confirmation"] or {}).get("first_epoch_only"),
        "predicted": {side: predicted[f"{side}_s"] for side in SIDES} if predicted else {},
        "taken": taken,
    }
    (folder / "found.json").write_text(json.dumps(found, indent=1))
    return found


def page() -> None:
    rows, near, count = [], 0, 0
    for name, program in PROGRAMS.items():
        path = BUILD / name / "found.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        cells = [name, f"{program.epochs * program.steps:,}"]
        speedup = found["speedup"]
        tuned = f"{speedup['estimate']:.2f}x ({speedup['low']:.2f} to {speedup['high']:.2f})"
        cells.append(tuned if found["verdict"] == "tuned" else "kept as it is")
        for side in SIDES:
            if not found["taken"][side]:
                cells.append("–")
                continue
            predicted, taken = found["predicted"][side], fmean(found["taken"][side])
            off = predicted / taken - 1
            near, count = near + (abs(off) <= WITHIN), count + 1
            cells.append(f"{predicted:.1f} / {taken:.1f} s: {off:+.1%}")
        rows.append(cells)
    columns = ["program", "steps", "faster by", *("before", "after", "after, nothing compiled yet")]
    head = [
        "# Time to train: predicted and taken",
        "",
        "Made by `python benchmarks/time_to_train.py`: each program tuned for the shortest time to"
        " train (`objective: time_to_train`), then run to its end, wall",
        "time of the whole process. Cells: predicted / taken.",
        "",
        f"**{near} of {count} predictions are within {WITHIN:.0%}.**",
    ]
    write_page(PAGE, head, columns, rows, NOTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=sorted(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for name in options.only:
        print(json.dumps(measure(name, options.minutes, options.rounds)), flush=True)
        page()


if __name__ == "__main__":
    main()
