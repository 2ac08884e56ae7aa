"""Sends a whole run's events to a progress, as the stages do. The tests run it as a script."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sample_results import samples

from autotune.report.progress import Progress
from autotune.report.terminal.plain import open_progress


def drive(progress: Progress, name: str = "tuned", pause_s: float = 0.0) -> None:
    result = samples()[name]
    progress.stage("observe", "the job as it is")
    progress.note("resuming after 31 s of earlier work")
    progress.observed(result.observation)
    progress.stage("search", "live session")
    best = None
    for trial in result.trials:
        progress.measuring(f"trial {trial.number}", trial.config)
        time.sleep(pause_s)
        if trial.state == "complete" and (
            best is None or (trial.speedup or 0) > (best.speedup or 0)
        ):
            best = trial
        progress.trial(trial, best)
    progress.warning("the machine was busy: 3 windows were measured again")
    progress.stage("confirm", "fresh processes, baseline and candidate in turn")
    if result.confirmation is not None:
        for index in range(1, 5):
            progress.fixed_run("confirm1", index, 10, result.confirmation.config)
            time.sleep(pause_s)
        progress.confirmed(result.confirmation)
    progress.stage("converge", "paired seeded runs")
    progress.loss(result.loss, result.knobs)
    progress.finished(result, Path("autotune-runs/digits-cnn"))


if __name__ == "__main__":
    with open_progress(sys.argv[1], budget_s=1200) as shown:
        drive(shown, sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
