"""A server that is down, refuses, stalls, or dies before it answers: the study continues, and is
recorded exactly once.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_processes import ENV, a_port, mlflow_server
from small_study import TRIALS, content, record
from unreliable_server import Request, Rule, UnreliableServer, unreliable

from autotune.errors import InputError
from autotune.tracking import open_tracker, pump, sync
from autotune.tracking.base import Tracker
from autotune.tracking.spool import SpoolPaths
from autotune.tracking.tracker import StudyTracker

pytestmark = pytest.mark.usefixtures("nothing_is_left")

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("server"), a_port()) as uri:
        yield uri


@pytest.fixture
def between(server: str) -> Iterator[UnreliableServer]:
    with unreliable(server) as found:
        yield found


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(pump, "LONGEST_PAUSE_S", 0.1)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "digits"
    path.mkdir(parents=True)
    return path


def an_experiment() -> str:
    return f"digits {next(numbers)}"


def check_on_record(server: str, experiment: str, run_dir: Path) -> None:
    """The store contains the same as a server without faults would, from the same spool."""
    sync(run_dir, uri=server, experiment=f"{experiment}, as it should be")
    assert content(server, experiment) == content(server, f"{experiment}, as it should be")
    assert len(content(server, experiment)) == TRIALS + 1


def wait_for(condition: Callable[[], object], what: str, patience_s: float = 30) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s for {what}"
        time.sleep(0.05)


def everything_sent(tracker: Tracker) -> bool:
    assert isinstance(tracker, StudyTracker) and tracker._pump is not None
    return not (tracker._pump._wanted or tracker._pump._busy)


def is_synced(run_dir: Path) -> bool:
    try:
        return sync(run_dir) is not None
    except InputError:
        return False


def first_time(action: str, which: Callable[[Request], bool]) -> Rule:
    """``action`` for the first of equal requests, "pass" for the others."""
    seen: set[Request] = set()

    def rule(request: Request) -> str:
        if not which(request) or request in seen:
            return "pass"
        seen.add(request)
        return action

    return rule


@pytest.mark.slow
def test_a_server_that_comes_back_has_the_record_before_the_run_ends(
    server: str, run_dir: Path, quick_pauses: None
) -> None:
    said: list[str] = []
    port, experiment = a_port(), an_experiment()
    tracker = open_tracker(f"http://127.0.0.1:{port}", experiment, run_dir, say=said.append)
    started = time.monotonic()
    tracker.start_study("study", "digits", {"command": "python train.py"}, {})
    tracker.trial("t0", "000", {"knob.num_workers": 0}, {"speedup": 1.0}, {})
    assert time.monotonic() - started < 10.0, "nobody waits for a server"
    wait_for(lambda: said, "the warning")
    with unreliable(server, port):
        # this needs no new event
        wait_for(lambda: len(said) == 2, "the server to be found again")
        assert sorted(content(server, experiment)) == ["000", "digits"]
        tracker.finish("FINISHED", {}, {})
    assert (
        "fails: Connection refused" in said[0]
        and "The run continues" in said[0]
        and f"autotune sync {run_dir}" in said[0]
    )
    assert "answers again" in said[1] and len(said) == 2
    assert content(server, experiment)["digits"][0] == "FINISHED"


long = pytest.mark.faults


@pytest.mark.slow
@pytest.mark.parametrize(
    "status", [403, *(pytest.param(status, marks=long) for status in (401, 429, 500, 503, 507))]
)
def test_a_server_that_refuses_costs_one_line(
    status: int, server: str, between: UnreliableServer, run_dir: Path, quick_pauses: None
) -> None:
    said: list[str] = []
    experiment = an_experiment()
    between.rule = lambda request: f"refuse {status}"
    started = time.monotonic()
    record(open_tracker(between.uri, experiment, run_dir, say=said.append), run_dir)
    assert time.monotonic() - started < 30
    assert len(said) == 1 and str(status) in said[0], said
    assert not between.done
    between.rule = lambda request: "pass"
    assert sync(run_dir).sent > TRIALS
    check_on_record(server, experiment, run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    "action", ["lose", *(pytest.param(action, marks=long) for action in ("half", "cut"))]
)
def test_every_answer_lost_once(
    action: str, server: str, between: UnreliableServer, run_dir: Path, quick_pauses: None
) -> None:
    """The classic case: the server has handled the request, but its answer was lost. There must be
    no duplicates.
    """
    experiment = an_experiment()
    between.rule = first_time(action, lambda request: request.writes)
    record(open_tracker(between.uri, experiment, run_dir, say=lambda text: None), run_dir)
    wait_for(lambda: is_synced(run_dir), "a sync without a fault")
    lost = len(between.seen) - len(set(between.seen))
    assert lost > 2 * TRIALS, "answers were lost"
    check_on_record(server, experiment, run_dir)


@pytest.mark.slow
def test_a_request_given_up_and_carried_out_later_leaves_one_run(
    server: str,
    between: UnreliableServer,
    run_dir: Path,
    quick_pauses: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    experiment = an_experiment()
    late = first_time(
        "late 3", lambda request: request.creates_run and b"the slow one" in request.body
    )
    between.rule = late
    tracker = open_tracker(between.uri, experiment, run_dir, say=lambda text: None)
    tracker.start_study("study", "digits", {}, {})
    tracker.trial("t0", "the slow one", {"knob.num_workers": 0}, {"speedup": 1.0}, {})
    wait_for(
        lambda: sum(r.creates_run and b"the slow one" in r.body for r in between.done) == 2,
        "the late request",
    )
    tracker.finish("FINISHED", {}, {})
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=server)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    assert sorted(str(r.info.run_name) for r in client.search_runs([found.experiment_id])) == [
        "digits",
        "the slow one",
    ]
    [kept] = [
        r for r in client.search_runs([found.experiment_id]) if r.info.run_name == "the slow one"
    ]
    assert kept.data.metrics == {"speedup": 1.0}, "the one that was filled stays"


@pytest.mark.slow
def test_a_server_that_never_answers_delays_nobody(
    server: str, between: UnreliableServer, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_s = 4
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(request_s))
    said: list[str] = []
    between.rule = lambda request: "late 60"
    tracker = open_tracker(between.uri, an_experiment(), run_dir, say=said.append)
    started = time.monotonic()
    tracker.start_study("study", "digits", {}, {})
    for number in range(50):
        tracker.trial(f"t{number}", f"{number}", {"knob.num_workers": number}, {"speedup": 1.0}, {})
    assert time.monotonic() - started < request_s, "not one request is waited for"
    tracker.finish("FINISHED", {}, {})
    assert time.monotonic() - started < 30
    assert len(said) == 1 and "timed out" in said[0]


@pytest.mark.slow
def test_a_server_that_came_back_empty_gets_everything_again(
    server: str, between: UnreliableServer, run_dir: Path, quick_pauses: None
) -> None:
    from mlflow import MlflowClient

    experiment = an_experiment()
    tracker = open_tracker(between.uri, experiment, run_dir, say=lambda text: None)
    tracker.start_study("study", "digits", {}, {})
    tracker.trial("t0", "000", {"knob.num_workers": 0}, {"speedup": 1.0}, {})
    wait_for(lambda: everything_sent(tracker), "the first trial to be sent")
    client = MlflowClient(tracking_uri=server)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    for run in client.search_runs([found.experiment_id]):
        client.delete_run(run.info.run_id)
    tracker.trial("t1", "001", {"knob.num_workers": 1}, {"speedup": 1.0}, {})
    tracker.finish("FINISHED", {}, {})
    runs = {str(r.info.run_name): r for r in client.search_runs([found.experiment_id])}
    assert sorted(runs) == ["000", "001", "digits"]
    study = runs.pop("digits").info.run_id
    assert {r.data.tags["mlflow.parentRunId"] for r in runs.values()} == {study}


_SENDS = """
import sys
from pathlib import Path
from autotune.tracking import sync
sync(Path(sys.argv[1]))
"""


def killed_after(server: UnreliableServer, run_dir: Path, requests: int) -> bool:
    """Send the spool from a process that is killed after MLflow has handled ``requests`` writing
    requests, before it gets the last answer. False if it needed fewer.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _SENDS, str(run_dir)], env=ENV, stderr=subprocess.DEVNULL
    )
    writing = 0

    def rule(request: Request) -> str:
        nonlocal writing
        writing += request.writes
        return "hold" if writing == requests else "pass" if writing < requests else "cut"

    already = len(server.done)
    server.rule = rule
    while process.poll() is None:
        if sum(r.writes for r in server.done[already:]) >= requests:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.001)
    server.rule = lambda request: "pass"
    return process.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("requests", [6])
def test_kill_9_between_the_write_and_the_mark(
    requests: int, server: str, between: UnreliableServer, run_dir: Path
) -> None:
    """After every request: tests/faults/test_every_tracking_kill.py."""
    experiment = an_experiment()
    record(open_tracker(between.uri, experiment, run_dir, offline=True), run_dir)
    assert killed_after(between, run_dir, requests)
    assert sync(run_dir).sent > 0
    assert sync(run_dir).sent == 0
    check_on_record(server, experiment, run_dir)


@pytest.mark.slow
def test_two_syncs_at_once(server: str, between: UnreliableServer, run_dir: Path) -> None:
    experiment = an_experiment()
    record(open_tracker(between.uri, experiment, run_dir, offline=True), run_dir)
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "autotune", "sync", str(run_dir)],
            env=ENV,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted("already has the complete record" in text for text in said) == [False, True], said
    check_on_record(server, experiment, run_dir)


@pytest.mark.slow
def test_the_cursor_stays_small(server: str, between: UnreliableServer, run_dir: Path) -> None:
    """If it contained every trial's run, a longer one would be written after each trial."""
    tracker = open_tracker(between.uri, an_experiment(), run_dir)
    record(tracker, run_dir)
    [cursor] = SpoolPaths(run_dir).root.glob("sent-*.json")
    assert cursor.stat().st_size < 600
