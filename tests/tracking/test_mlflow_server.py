"""A real MLflow server on this machine that is first unavailable, then available; and the pages
that `autotune ui` starts.
"""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from empty_store import empty_store
from server_processes import ENV, a_port, running

from autotune.tracking import open_tracker, preflight, sync
from autotune.tracking.stores import resolve
from autotune.tracking.ui import free_port, server_command

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.slow
def test_a_server_that_is_away_at_first(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    port = a_port()
    uri = f"http://127.0.0.1:{port}"
    said: list[str] = []
    run_dir = tmp_path / "runs" / "digits"
    tracker = open_tracker(uri, "digits", run_dir, say=said.append)
    tracker.start_study("s", "digits", {"command": "python train.py"}, {})
    tracker.trial("t0", "000", {"knob.num_workers": 0}, {"speedup": 1.0}, {})
    page = run_dir / "report.html"
    page.write_text("page")
    tracker.study_artifact(page)
    tracker.finish("FINISHED", {}, {})
    assert len(said) == 1

    store = resolve(f"sqlite:///{empty_store(tmp_path / 'server' / 'mlflow.db')}")
    assert store is not None
    argv, env = server_command(store, port)
    with running(argv, env, port) as server:
        preflight(uri)
        assert sync(run_dir).sent > 3
        assert sync(run_dir).sent == 0
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("digits")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        assert sorted(r.info.run_name for r in runs) == ["000", "digits"]
        (parent,) = [r for r in runs if r.info.run_name == "digits"]
        assert [a.path for a in client.list_artifacts(parent.info.run_id)] == ["report.html"]

        # a second study, online from its first to its last event
        online = open_tracker(uri, "digits", tmp_path / "runs" / "second", say=said.append)
        online.start_study("s", "second", {}, {})
        for number in range(10):
            online.trial(
                f"t{number}",
                f"{number}",
                {"knob.num_workers": number},
                {"speedup": 1.0 + number},
                {},
            )
        online.finish("FINISHED", {}, {})
        assert len(said) == 1, said
        assert len(client.search_runs([experiment.experiment_id])) == 2 + 11
        assert sync(tmp_path / "runs" / "second").sent == 0
        assert server.poll() is None


def test_ui_serves_a_run_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "digits"
    empty_store(run_dir.parent / "mlflow.db")
    tracker = open_tracker("auto", "digits", run_dir)
    tracker.start_study("s", "digits", {}, {})
    tracker.finish("FINISHED", {}, {})
    port = a_port()
    argv = [sys.executable, "-m", "autotune", "ui", str(run_dir), "--port", str(port)]
    with running(argv, ENV, port) as process:
        listening = (
            subprocess.run(["ss", "-ltn"], capture_output=True, text=True).stdout
            if os.path.exists("/usr/bin/ss")
            else f"127.0.0.1:{port}"
        )
        assert f"127.0.0.1:{port}" in listening
        process.send_signal(signal.SIGINT)
        process.wait(60)
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)


def test_ui_without_a_record_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "ui"],
        cwd=tmp_path,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "autotune run" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_passed_over() -> None:
    while True:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = other.getsockname()[1]
            if taken < 65500:  # there are ports above it
                assert free_port(taken) > taken
                return
