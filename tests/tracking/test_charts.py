"""The saved view of a study's trials: as stored by MLflow and as drawn by its page."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from empty_store import empty_store
from server_processes import a_port, mlflow_server
from small_study import TRIALS

from autotune.run_directory import RUNS
from autotune.tracking import open_tracker
from autotune.tracking.base import BOTH_TAG, NOTE_TAG, SEARCHED_TAG
from autotune.tracking.charts import VIEW_TAG
from autotune.tracking.ui import pages_to_open, store_to_show

pytestmark = pytest.mark.usefixtures("nothing_is_left")


BOTH = "times/throughput", "times/energy"


def a_study(uri: str, run_dir: Path) -> Any:
    """An MLflow run with some trials."""
    run_dir.mkdir(parents=True, exist_ok=True)
    tracker = open_tracker(uri, "digits", run_dir)
    tracker.start_study("study", "digits", {}, {})
    for number in range(TRIALS):
        params = {"knob.num_workers": number, "knob.amp_dtype": "off"}
        metrics = {
            "speedup": 1.0 + number / 4,
            BOTH[0]: 1.0 + number / 4,
            BOTH[1]: 2.0 - number / 8,
        }
        tracker.trial(f"t{number}", f"{number:03d}", params, metrics, {})
    tags = {SEARCHED_TAG: "num_workers,amp_dtype", NOTE_TAG: "**1.50× faster**"}
    tags[BOTH_TAG] = ",".join(BOTH)
    tracker.finish("FINISHED", {}, tags)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.`autotune.kind` = 'study'")
    return client, experiment, runs[0]


def the_link(study: Any) -> str:
    match = re.search(r"\]\((#[^)]+)\)", study.data.tags[NOTE_TAG])
    assert match is not None
    return match[1]


def test_a_study_links_to_a_view_of_its_trials(tmp_path: Path) -> None:
    empty_store(tmp_path / "mlflow.db")
    client, experiment, study = a_study(
        f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "runs" / "digits"
    )
    assert study.data.tags[NOTE_TAG].startswith("**1.50× faster**")
    where, _, query = the_link(study).partition("?")
    assert where == f"#/experiments/{experiment.experiment_id}/runs"
    key = dict(part.split("=") for part in query.split("&"))["viewStateShareKey"]
    state = json.loads(experiment.tags[VIEW_TAG + key])
    shown = client.search_runs([experiment.experiment_id], state["searchFilter"])
    assert sorted(run.info.run_name for run in shown) == ["000", "001", "002"]
    knobs, speedups, both = state["compareRunCharts"]
    assert (both["xaxis"]["key"], both["yaxis"]["key"]) == BOTH
    assert all(set(knobs["selectedParams"]) == set(run.data.params) for run in shown)
    assert [speedups["metricKey"]] == knobs["selectedMetrics"] == ["speedup"]


def test_ui_links_to_the_views_of_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    empty_store(RUNS / "mlflow.db")
    run_dir = RUNS / "digits"
    store = store_to_show(None, None)
    _, _, study = a_study(store.uri, run_dir)
    unfinished = RUNS / "second"
    open_tracker("auto", "digits", unfinished).start_study("study", "second", {}, {})
    assert pages_to_open(run_dir, store) == {"digits": the_link(study)}
    assert pages_to_open(None, store) == {"digits": the_link(study)}
    assert pages_to_open(unfinished, store) == {}


@pytest.mark.browser
def test_mlflow_draws_the_view(tmp_path: Path) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        pytest.skip("no Chromium here (on Debian: apt install chromium)")
    with mlflow_server(tmp_path, a_port()) as uri, driver.sync_playwright() as tools:
        _, _, study = a_study(uri, tmp_path / "runs" / "digits")
        browser = tools.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
        )
        page = browser.new_page(viewport={"width": 1600, "height": 2000})
        page.goto(f"{uri}/{the_link(study)}")
        for drawn in ("Parallel Coordinates", "knob.amp_dtype", "1.50", BOTH[1]):
            page.get_by_text(drawn).first.wait_for(timeout=60_000)
        drawn = page.locator("body").inner_text()
        browser.close()
    assert "Trials" in drawn and "3 matching runs" in drawn
