"""A small study to record, and what a store then contains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from autotune.tracking.base import Tracker

TRIALS = 3
TRACED = "a|b"  # a knob's value may hold any character


def record(tracker: Tracker, run_dir: Path, status: str = "FINISHED") -> None:
    """Record a small study: every kind of event, and children with the same keys."""
    tracker.start_study(
        "study",
        "digits",
        {"command": "python train.py", "budget.minutes": 20},
        {"autotune.version": "1"},
    )
    for number in range(TRIALS):
        params = {"knob.num_workers": number, "knob.amp_dtype": "off"}
        metrics = {"speedup": 1.0 + number, "anatomy/data_ms": 3.0, "wall_s": 2.0}
        tracker.trial(
            TRACED if number == 1 else f"t{number}",
            f"{number:03d}",
            params,
            metrics,
            {"autotune.state": "failed" if number == 2 else "complete"},
        )
    trace = run_dir / "trace.json"
    trace.write_text("trace")
    tracker.trial_artifact(TRACED, trace, "traces")
    tracker.study_metrics({"speedup": 1.5, "speedup_low": math.nan})
    tracker.trial_series("t0", "loss", {10: 2.0, 20: 1.0})
    tracker.study_artifact(trace)
    tracker.finish(status, {"verdict": "tuned"}, {"autotune.verdict": "tuned"})


def content(uri: str, experiment: str = "digits") -> dict[str, Any]:
    """The complete contents of the store, in a form that can be compared."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id], run_view_type=3)  # including deleted ones
    rows = {}
    for run in runs:
        run_id = run.info.run_id
        points = sorted(
            (p.key, p.step, p.timestamp, str(p.value))
            for key in run.data.metrics
            for p in client.get_metric_history(run_id, key)
        )
        files = sorted(
            a.path
            for folder in (None, "traces")
            for a in client.list_artifacts(run_id, folder)
            if not a.is_dir
        )
        tags = {k: v for k, v in run.data.tags.items() if k != "mlflow.parentRunId"}
        rows[run.info.run_name] = (
            run.info.status,
            run.info.lifecycle_stage,
            run.data.params,
            points,
            files,
            tags,
        )
    assert len(rows) == len(runs), "a run is there twice"
    return rows
