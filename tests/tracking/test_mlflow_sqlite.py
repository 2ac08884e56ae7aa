"""Real MLflow on sqlite: parent and children are sent exactly once, whatever is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from empty_store import empty_store
from server_processes import ENV
from small_study import TRIALS, content, record

from autotune.errors import InputError
from autotune.tracking import open_tracker, preflight, sync
from autotune.tracking.client import mlflow_module, uploading
from autotune.tracking.mlflow import Sender
from autotune.tracking.pump import Busy, Pump
from autotune.tracking.spool import SpoolPaths, read_events
from autotune.tracking.stores import resolve

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture
def new_run_dir(tmp_path: Path) -> Path:
    """Without a store."""
    path = tmp_path / "autotune runs" / "digits"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def run_dir(new_run_dir: Path) -> Path:
    empty_store(new_run_dir.parent / "mlflow.db")
    return new_run_dir


def uri_of(run_dir: Path) -> str:
    store = resolve("auto", run_dir)
    assert store is not None
    return store.uri


def test_an_upload_has_minutes_and_a_request_seconds() -> None:
    """A server may answer a large file only once it has passed it on."""
    mlflow_module()
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT as TIMEOUT

    with uploading():
        assert TIMEOUT.get() == 300
    assert TIMEOUT.get() == 8


def test_parent_and_children(new_run_dir: Path) -> None:
    from mlflow import MlflowClient

    tracker = open_tracker("auto", "digits", new_run_dir)
    record(tracker, new_run_dir)
    client = MlflowClient(tracking_uri=f"sqlite:///{new_run_dir.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development", (
        "the view for model training"
    )
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    children = [r for r in runs if r is not parent]
    assert {c.data.tags["mlflow.parentRunId"] for c in children} == {parent.info.run_id}
    assert len(children) == TRIALS
    keys = {frozenset(c.data.metrics) - {"loss"} for c in children}
    assert len({frozenset(c.data.params) for c in children}) == len(keys) == 1  # comparable
    assert {c.info.run_name: c.info.status for c in children} == {
        "000": "FINISHED",
        "001": "FINISHED",
        "002": "FAILED",
    }
    assert all(c.info.end_time - c.info.start_time == 2000 for c in children)
    assert parent.info.status == "FINISHED"
    assert parent.data.params == {
        "command": "python train.py",
        "budget.minutes": "20",
        "verdict": "tuned",
    }
    (first,) = [c for c in children if c.info.run_name == "000"]
    assert [(p.step, p.value) for p in client.get_metric_history(first.info.run_id, "loss")] == [
        (10, 2.0),
        (20, 1.0),
    ]
    (traced,) = [c for c in children if c.info.run_name == "001"]
    assert [a.path for a in client.list_artifacts(traced.info.run_id, "traces")] == [
        "traces/trace.json"
    ]
    assert (
        new_run_dir.parent / "mlartifacts" / parent.info.run_id / "artifacts" / "trace.json"
    ).read_text() == "trace"


def test_the_global_run_and_the_environment_are_left_alone(run_dir: Path) -> None:
    before = dict(os.environ)
    record(open_tracker("auto", "digits", run_dir), run_dir)
    import mlflow

    assert mlflow.active_run() is None
    assert {
        k: v for k, v in os.environ.items() if before.get(k) != v and not k.startswith("PYTEST")
    } == {}


def test_offline_then_sync_is_the_same_as_online(new_run_dir: Path, tmp_path: Path) -> None:
    record(open_tracker("auto", "digits", new_run_dir, offline=True), new_run_dir)
    assert not (new_run_dir.parent / "mlflow.db").exists()
    report = sync(new_run_dir)
    assert report.sent > TRIALS
    first = content(uri_of(new_run_dir))
    assert len(first) == TRIALS + 1
    assert sync(new_run_dir).sent == 0
    assert content(uri_of(new_run_dir)) == first


def test_sending_all_of_it_again_adds_nothing(run_dir: Path) -> None:
    record(open_tracker("auto", "digits", run_dir), run_dir)
    first = content(uri_of(run_dir))
    (cursor,) = SpoolPaths(run_dir).root.glob("sent-*.json")
    cursor.unlink()
    assert sync(run_dir).sent > 0
    assert content(uri_of(run_dir)) == first


def test_cut_off_after_every_single_send(run_dir: Path, tmp_path: Path) -> None:
    """Each event is sent and its cursor lost; the next process starts from the last cursor."""
    record(open_tracker("auto", "digits", run_dir, offline=True), run_dir)
    store = resolve("auto", run_dir)
    assert store is not None

    class CutOff(Sender):
        def _write_cursor(self) -> None:
            self.sends = getattr(self, "sends", 0) + 1
            if self.sends == 2:
                raise SystemExit("cut off between the send and its cursor")
            super()._write_cursor()

    events = sum(1 for _ in read_events(SpoolPaths(run_dir).spool))
    for _ in range(events - 1):
        with pytest.raises(SystemExit):
            CutOff(run_dir, store, "digits").send()
    sync(run_dir)
    cut = content(store.uri)
    other = empty_store(tmp_path / "whole.db")
    sync(run_dir, uri=f"sqlite:///{other}")
    assert cut == content(f"sqlite:///{other}")


def test_what_another_sender_left_half_done_is_found(run_dir: Path) -> None:
    """A concurrent `autotune sync` is killed after a send, before it writes its cursor: the run's
    own sender must not take the event for a new one.
    """
    tracker = open_tracker("auto", "digits", run_dir, offline=True)
    tracker.start_study("study", "digits", {}, {})
    store = resolve("auto", run_dir)
    assert store is not None
    own = Sender(run_dir, store, "digits")
    assert own.send() == 2

    class Killed(Sender):
        def _write_cursor(self) -> None:
            raise SystemExit("killed")

    tracker.trial("t0", "000", {"knob.num_workers": 0}, {"speedup": 1.0}, {})
    with pytest.raises(SystemExit):
        Killed(run_dir, store, "digits").send()
    assert own.send() == 1
    assert set(content(store.uri)) == {"digits", "000"}
    tracker.trial("t1", "001", {"knob.num_workers": 1}, {"speedup": 1.0}, {})
    own._log = lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        own.send()
    del own._log
    assert own.send() == 1
    assert set(content(store.uri)) == {"digits", "000", "001"}


_KILLED = """
import sys, time
from pathlib import Path
from autotune.tracking.mlflow import Sender
from autotune.tracking.stores import resolve
class Slow(Sender):
    def _write_cursor(self):
        print("sent", flush=True)
        time.sleep(60 if self.offset > int(sys.argv[2]) else 0)
        super()._write_cursor()
run_dir = Path(sys.argv[1])
Slow(run_dir, resolve("auto", run_dir), "digits").send()
"""


@pytest.mark.slow
def test_kill_9_between_a_send_and_its_cursor(run_dir: Path) -> None:
    record(open_tracker("auto", "digits", run_dir, offline=True), run_dir)
    offsets = [offset for _, offset in read_events(SpoolPaths(run_dir).spool)]
    child = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(run_dir), str(offsets[3])],
        stdout=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    assert child.stdout is not None
    for _ in range(5):
        assert child.stdout.readline() == "sent\n"
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    child.stdout.close()
    assert sync(run_dir).sent == len(offsets) - 4
    rows = content(uri_of(run_dir))
    assert len(rows) == TRIALS + 1
    points = [(name, *point) for name, row in rows.items() for point in row[3]]
    assert len(points) == len(set(points)) == TRIALS * 3 + 4


def test_a_resumed_study_is_one_run(run_dir: Path) -> None:
    first = open_tracker("auto", "digits", run_dir)
    first.start_study("study", "digits", {"command": "python train.py", "budget.minutes": 10}, {})
    first.trial(
        "t0",
        "000",
        {"knob.num_workers": 0, "knob.amp_dtype": "off"},
        {"speedup": 1.0, "anatomy/data_ms": 3.0, "wall_s": 2.0},
        {},
    )
    first.finish("KILLED", {}, {})
    assert content(uri_of(run_dir))["digits"][0] == "KILLED"
    record(open_tracker("auto", "digits", run_dir), run_dir)
    rows = content(uri_of(run_dir))
    assert len(rows) == TRIALS + 1
    assert rows["digits"][0] == "FINISHED"
    # MLflow's params cannot change; the new value is a tag
    assert rows["digits"][2]["budget.minutes"] == "10"
    assert rows["digits"][5]["changed.budget.minutes"] == "20"


def test_two_studies_of_one_job_do_not_meet(tmp_path: Path) -> None:
    empty_store(tmp_path / "mlflow.db")
    for name in ("a", "b"):
        run_dir = tmp_path / name
        run_dir.mkdir()
        record(open_tracker("auto", "digits", run_dir), run_dir)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 2 * (TRIALS + 1)


@pytest.mark.slow
def test_an_emptied_store_gets_everything_again(run_dir: Path) -> None:
    record(open_tracker("auto", "digits", run_dir), run_dir)
    first = content(uri_of(run_dir))
    (run_dir.parent / "mlflow.db").rename(run_dir.parent / "gone.db")
    empty_store(run_dir.parent / "mlflow.db")
    # In another process: MLflow keeps connections to the removed file.
    code = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import test_mlflow_sqlite as"
        f" t; t.sync(t.Path({str(run_dir)!r})); "
    )
    code += f"print(sorted(t.content({uri_of(run_dir)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=ENV
    )
    assert done.stdout.strip() == str(sorted(first)), done.stderr


def test_a_study_deleted_before_the_last_thing_is_sent_is_sent_again(run_dir: Path) -> None:
    """Deletion in the UI makes the very send fail that the end of the study waits for."""
    from mlflow import MlflowClient

    said: list[str] = []
    tracker = open_tracker("auto", "digits", run_dir, say=said.append)
    tracker.start_study("study", "digits", {}, {})
    tracker.trial("t0", "000", {"knob.num_workers": 0}, {"speedup": 1.0}, {})
    client = MlflowClient(tracking_uri=uri_of(run_dir))
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    for run in client.search_runs([experiment.experiment_id]):
        client.delete_run(run.info.run_id)
    tracker.finish("FINISHED", {}, {})
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(str(run.info.run_name) for run in runs) == ["000", "digits"]
    assert {run.info.status for run in runs} == {"FINISHED"} and not said


def test_an_artifact_that_is_gone_is_named(run_dir: Path) -> None:
    record(open_tracker("auto", "digits", run_dir, offline=True), run_dir)
    (run_dir / "trace.json").unlink()
    assert len(sync(run_dir).missing) == 2


def test_only_one_sends_at_a_time(run_dir: Path) -> None:
    record(open_tracker("auto", "digits", run_dir, offline=True), run_dir)
    store = resolve("auto", run_dir)
    assert store is not None
    one, two = Sender(run_dir, store, "digits"), Sender(run_dir, store, "digits")
    with one._locked(wait=False), pytest.raises(Busy):
        two.send()
    assert two.send() > 0


def test_failing_once_is_said_once_and_stops_nothing(run_dir: Path) -> None:
    said: list[str] = []
    tracker = open_tracker("http://127.0.0.1:9", "digits", run_dir, say=said.append)
    started = time.monotonic()
    record(tracker, run_dir)
    assert time.monotonic() - started < 20
    assert len(said) == 1
    assert "autotune sync" in said[0] and "127.0.0.1:9" in said[0]
    assert sync(run_dir, uri="auto").sent > TRIALS


def test_a_slow_store_delays_nobody(run_dir: Path) -> None:
    class Slow:
        sends = 0

        def send(self, *, wait: bool = False) -> int:
            time.sleep(0.5)
            self.sends += 1
            return 0

    slow = Slow()
    pump = Pump(slow, background=True, failed=lambda error: None)
    started = time.monotonic()
    for _ in range(20):
        pump.poke()
    assert time.monotonic() - started < 5.0, "half of what the sends would take"
    assert pump.drain(10)
    assert 1 <= slow.sends <= 3
    pump.close()


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("ftp://host/x", "not a tracking URI"),
        ("http://", "not a tracking URI"),
        ("http://host:port", "not a tracking URI"),
        ("http://[::1", "not a tracking URI"),
        ("http://two words:5000", "not a tracking URI"),
        ("./mlruns", "sqlite:///"),
        ("file:///tmp/mlruns", "sqlite:////tmp/mlruns/mlflow.db"),
        ("sqlite://", "names no file"),
        ("sqlite:////proc/nothing/mlflow.db", "cannot be written"),
    ],
)
def test_a_uri_that_names_no_store_is_refused(uri: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        preflight(uri)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "found"),
    [("http://127.0.0.1:9", "Connection refused"), ("http://nowhere.invalid", "does not answer")],
)
def test_a_server_that_is_away_stops_no_run_but_a_sync(uri: str, found: str, run_dir: Path) -> None:
    preflight(uri)
    record(open_tracker(uri, "digits", run_dir, offline=True), run_dir)
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        sync(run_dir)
    assert found in str(caught.value) and "nothing is sent twice" in str(caught.value)
    assert time.monotonic() - started < 20


def test_preflight_passes_what_works_and_leaves_nothing(tmp_path: Path) -> None:
    preflight(None)
    preflight("auto", tmp_path / "runs" / "digits")
    preflight(f"sqlite:///{tmp_path / 'deep' / 'mlflow.db'}")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.db").write_text("not a database")
    with pytest.raises(InputError, match="not a sqlite database"):
        preflight(f"sqlite:///{tmp_path / 'x.db'}")


def test_sync_of_something_else_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no record of a run"):
        sync(tmp_path)
    open_tracker(None, "e", tmp_path)
    with pytest.raises(InputError, match="recorded without MLflow"):
        sync(tmp_path)


def test_without_mlflow_one_line_says_so(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["mlflow"] = None
from autotune.tracking import open_tracker, preflight
from pathlib import Path
preflight("auto", Path(sys.argv[1]))
t = open_tracker("auto", "e", Path(sys.argv[1]))
t.start_study("s", "n", {}, {}); t.finish("FINISHED", {}, {})
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        env=ENV,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("The run continues") == 1 and len(done.stdout.splitlines()) == 1
    assert (tmp_path / "run" / "tracking" / "spool.jsonl").exists()


def test_artifacts_that_cannot_be_stored_hold_nothing_else_up(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in S3, without its credentials here."""
    from mlflow import MlflowClient

    def refused(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'boto3'")

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_artifact", refused)
        said: list[str] = []
        record(open_tracker("auto", "digits", run_dir, say=said.append), run_dir)
        assert len(said) == 1 and "boto3" in said[0]
        with pytest.raises(InputError, match="boto3"):
            sync(run_dir)
        status, _, params, points, files, tags = content(uri_of(run_dir))["digits"]
        assert (status, params["verdict"], files) == ("FINISHED", "tuned", [])
        assert tags["autotune.verdict"] == "tuned" and points
    sync(run_dir)
    assert content(uri_of(run_dir))["digits"][4] == ["trace.json"]


def test_what_is_recorded_while_artifacts_are_sent_goes_before_the_next_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take seconds to fail, and a run ends within thirty."""
    from mlflow import MlflowClient

    tracker = open_tracker("auto", "digits", run_dir, offline=True)
    tracker.start_study("study", "digits", {}, {})
    for number in range(2):
        (run_dir / f"{number}.png").write_text("")
        tracker.study_artifact(run_dir / f"{number}.png")
    seen: list[str] = []

    def refused(client: MlflowClient, run_id: str, *_: object) -> None:
        seen.append(client.get_run(run_id).info.status)
        tracker.finish("FINISHED", {}, {})
        raise ModuleNotFoundError("No module named 'boto3'")

    monkeypatch.setattr(MlflowClient, "log_artifact", refused)
    with pytest.raises(InputError, match="boto3"):
        sync(run_dir)
    assert seen == ["RUNNING", "FINISHED"]


def test_a_long_name_is_cut(run_dir: Path) -> None:
    """SQLite takes any, PostgreSQL and MySQL refuse more than 250 characters."""
    tracker = open_tracker("auto", "digits", run_dir)
    tracker.start_study("study", "digits", {}, {})
    tracker.trial("t", "000 " + "x" * 400, {}, {}, {})
    tracker.finish("FINISHED", {}, {})
    assert {len(name) for name in content(uri_of(run_dir))} == {len("digits"), 250}
