"""An MLflow experiment as a team's history: studies contain their records, and are only read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from played import job
from replay import Loss, ReplayExecutor, ReplayTable

from autotune import running
from autotune.history.mlflow_store import MlflowStore
from autotune.history.records import PastRun
from autotune.history.store import Store, StoreError
from autotune.history.use import team_store

FASTER = ReplayTable(
    cost_s=0.0005,
    factors={"num_workers": {"1": 0.85, "2": 0.7}, "amp_dtype": {"bfloat16": 0.6}},
    otherwise=1.0,
    loss=Loss(),
    machine={"cores": 4, "bfloat16": "native"},
)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, PastRun]:
    """(tracking URI, the run in this user's own store) of one run by the command."""
    folder = tmp_path_factory.mktemp("studied")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    spec = job(folder / "job")
    spec = replace(spec, name="team-job", tracking=replace(spec.tracking, uri=uri))
    with pytest.MonkeyPatch.context() as patch:
        machine = ReplayExecutor(FASTER, 0)
        patch.setattr(running, "open_executor", lambda *_: machine)
        running.tune_job(
            spec, folder / "run", progress_kind="silent", history=True, store=folder / "own.sqlite"
        )
    (run,) = Store(folder / "own.sqlite").runs()
    assert json.loads((folder / "run" / "history.json").read_text())["id"] == run.id
    return uri, run


def test_a_study_brings_its_record_along(
    studied: tuple[str, PastRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, run = studied
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("AUTOTUNE_TEAM_STORE", "mlflow:team-job")
    store = team_store(print)
    assert isinstance(store, MlflowStore)
    assert store.runs() == [run]


@pytest.mark.parametrize(
    ("uri", "experiment", "why"),
    [
        ("", "team-job", "MLFLOW_TRACKING_URI is not set"),
        (None, "another", "no such experiment"),
        ("http://127.0.0.1:9", "team-job", "does not answer"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    uri: str | None,
    experiment: str,
    why: str,
    studied: tuple[str, PastRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", studied[0] if uri is None else uri)
    with pytest.raises(StoreError, match=why) as caught:
        MlflowStore(experiment, print).runs()
    assert "\n" not in str(caught.value)


def test_a_file_is_a_store_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TEAM_STORE", str(tmp_path / "team.sqlite"))
    store = team_store(print)
    assert isinstance(store, Store) and store.read_only


def test_a_store_whose_files_cannot_be_read_here_is_told_once(
    studied: tuple[str, PastRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    def refused(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'boto3'")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", studied[0])
    monkeypatch.setattr(MlflowClient, "download_artifacts", refused)
    with pytest.raises(StoreError, match="boto3"):
        MlflowStore("team-job", print).runs()


def test_studies_that_cannot_be_read_beside_others_are_counted(
    studied: tuple[str, PastRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    store = MlflowStore("team-job", said.append)

    def record(_client: object, run_id: str) -> PastRun:
        if run_id != "whole":
            raise OSError(f"{run_id} is gone")
        return studied[1]

    monkeypatch.setattr(store, "_record", record)
    assert store._records(None, ["whole"]) == [studied[1]] and not said
    assert store._records(None, ["whole", "a", "b"]) == [studied[1]]
    (line,) = said
    assert "2 of 3 studies" in line and "a is gone" in line
