"""The jobs: the scripts in jobs/, and the example. Each gets its own job file in build/regret/."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "regret"
# Start-up (mostly compilation) is spread over this many steps: such a job runs for one to eight
# hours. Jobs that run for minutes are not worth tuning.
PLANNED_STEPS = 500_000
RIVALS = ("tpe", "random", "ofat", "tpe-confirmed", "random-confirmed", "ofat-confirmed")
LOADTUNE_JOBS = ("conv_no_eval", "loader_computes", "loader_waits")
NEVER_ENDS = 1_000_000  # epochs: trials never reach the end


def scripts() -> dict[str, Path]:
    found = {path.stem: path for path in sorted((HERE / "jobs").glob("*.py"))}
    return found | {"digits": ROOT / "examples" / "digits" / "train.py"}


def job_file(job: str) -> Path:
    """Write the job file of ``job``. (JSON is YAML.)"""
    folder = BUILD / job
    (folder / "work").mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            "name": job,
            "command": [sys.executable, str(scripts()[job]), "--epochs", str(NEVER_ENDS)],
            "workdir": "work",
            "search_space": "auto",
            "planned_steps": PLANNED_STEPS,
            "tracking": {"uri": "none"},
        },
        indent=1,
    )
    path = folder / "job.yaml"
    path.write_text(text + "\n", encoding="utf-8")
    return path
