"""What a finished run leaves in MLflow: every file to open and every figure to chart."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from empty_store import empty_store
from sample_results import samples, tuned

from autotune.explain.records import Finding, NotJudged, PerfSummary
from autotune.job.load import load_job
from autotune.job.spec import JobSpec
from autotune.report.result_file import write_result
from autotune.results import Interval, Point, Result
from autotune.running import publish_outcome
from autotune.tracking import open_tracker, records
from autotune.tracking.base import Tracker


def explained() -> Result:
    """A result with findings, a summary and the files of the explain stage."""
    result = tuned()
    sides = dict(result.explanation.sides)
    summary = PerfSummary(
        0.01, 0.1, 0.1, 640.0, 660.0, 600.0, 12.0, 90, 12, mfu=0.31, mfu_of="float32"
    )
    sides["baseline"] = replace(sides["baseline"], summary=summary, table="traces/baseline.csv")
    findings = (
        Finding(
            "loader-bound",
            "the device waits for data",
            "baseline",
            "59%",
            "more workers",
            0.057,
            cured=True,
        ),
        Finding(
            "prints",
            "a line is printed every step",
            "winner",
            "24 a step",
            "print less often",
            0.001,
        ),
    )
    explanation = replace(
        result.explanation,
        sides=sides,
        findings=findings,
        rules=2,
        not_judged=(NotJudged("casts", "casts", "no GPU"),),
    )
    return replace(result, explanation=explanation)


def job(folder: Path) -> JobSpec:
    empty_store(folder / "mlflow.db")
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(
        f"command: python train.py\nname: digits\ntracking: {{uri: 'sqlite:///{folder}/mlflow.db'}}\n"
    )
    return load_job(folder / "job.yaml")


def recorded(folder: Path, result: Result) -> tuple[Any, list[str]]:
    """(the parent run in the store, paths of its artifacts)."""
    from mlflow import MlflowClient

    spec, run_dir = job(folder), folder / "run"
    (run_dir / "traces").mkdir(parents=True)
    for name in ("baseline.json.gz", "winner.json.gz", "baseline.csv"):
        (run_dir / "traces" / name).write_text("content")
    (run_dir / "traces" / "roofline.png").write_bytes(b"png")
    write_result(result, run_dir / "result.json")
    publish_outcome(result, spec, run_dir)
    tracker = open_tracker(spec.tracking.uri, "digits", run_dir)
    records.begin(tracker, spec, run_dir)
    records.record_baseline(tracker, result.observation)
    records.record_result(tracker, result, run_dir)
    records.finish(tracker, "FINISHED", result)
    client = MlflowClient(tracking_uri=spec.tracking.uri)
    [experiment] = [e for e in client.search_experiments() if e.name == "digits"]
    [parent] = [
        r
        for r in client.search_runs([experiment.experiment_id])
        if "mlflow.parentRunId" not in r.data.tags
    ]
    files = [
        a.path
        for folder_ in (None, "traces")
        for a in client.list_artifacts(parent.info.run_id, folder_)
        if not a.is_dir
    ]
    return parent, files


def test_every_file_and_figure_of_the_explanation_is_in_the_study(tmp_path: Path) -> None:
    parent, files = recorded(tmp_path, explained())
    assert set(files) == {
        "tuned.yaml",
        "report.html",
        "result.json",
        "findings.json",
        "loss.png",
        "waterfall.png",
        "roofline.png",
        "traces/baseline.json.gz",
        "traces/winner.json.gz",
        "traces/baseline.csv",
    }
    said = parent.data.tags["mlflow.note.content"]
    assert "× faster" in said and "`num_workers`: " in said and "report.html" in said
    metrics = parent.data.metrics
    assert metrics["explain/wall_s"] == explained().explanation.wall_s
    assert metrics["explain/findings"] == 1, "what the winner cured is not counted"
    assert metrics["importance/num_workers"] == 0.71
    kept = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert [f["rule"] for f in kept["findings"]] == ["loader-bound", "prints"]
    assert kept["not_judged"][0]["reason"] == "no GPU"
    assert kept["rules"] == 2


def test_of_two_objectives_every_trial_has_both(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    result = tuned()
    environment = {"objective": "energy", "second_objective": "throughput"}
    points = (Point({}, 1.0, 1.0), Point({"num_workers": 9}, 3.0, 2.0, number=99))
    result = replace(result, points=points, environment={**result.environment, **environment})
    parent, _ = recorded(tmp_path, result)
    assert parent.data.tags["autotune.both"] == "times/energy,times/throughput"
    assert "× more energy-efficient (" in parent.data.tags["mlflow.note.content"]
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([parent.info.experiment_id], "metrics.unbeaten = 1")
    assert [run.data.metrics["times/throughput"] for run in runs] == [1.0]


def test_a_run_without_explanation_leaves_none_of_it(tmp_path: Path) -> None:
    parent, files = recorded(tmp_path, samples()["keep"])
    assert parent.data.tags["mlflow.note.content"].startswith("**Keep your settings: ")
    assert "findings.json" not in files
    assert "waterfall.png" not in files
    assert not [
        name for name in parent.data.metrics if name.startswith(("explain/", "importance/"))
    ]


def test_a_value_measured_again_in_fresh_processes_is_a_run_of_its_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tracker = open_tracker(None, "digits", run)
    live = tuned().trials[0]
    for trial in (live, replace(live, number=99, origin="process")):
        records.record_trial(tracker, trial, {})
    said = [
        json.loads(line) for line in (run / "tracking" / "spool.jsonl").read_text().splitlines()
    ]
    names = [event["data"]["name"] for event in said if event["kind"] == "trial"]
    assert len(names) == 2 and names[1].startswith("099")


def test_a_finalist_that_failed_at_once_has_no_speedup(tmp_path: Path) -> None:
    result = tuned()
    assert result.confirmation is not None
    failed = replace(result.confirmation, pairs=0, adopted=False, speedup=Interval(1.0, 1.0, 1.0))
    client, parent = MetricsHeard(), replace(result, confirmation=failed)
    records._record_finalist(client, parent)
    assert "speedup" not in client.metrics["finalist"]
    records._record_finalist(client, result)
    assert "speedup" in client.metrics["finalist"]


class MetricsHeard(Tracker):
    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, float]] = {}

    def trial(self, key: str, name: str, params: Any, metrics: Any, tags: Any) -> None:
        self.metrics[key] = dict(metrics)
