"""A hang is judged by the job's own pace: a job hangs if it does nothing for far longer than ever
before, not if it is slow or computes.
"""

from __future__ import annotations

import time

import pytest
from test_real_jobs import failure_of, job, start

from autotune_trials.protocol.messages import Block, KnobChoice, SessionConfig
from autotune_trials.session.silence import SlowestGap, idle_limit_s, working_limit_s

pytestmark = pytest.mark.usefixtures("nothing_is_left")

FULL_S = 300.0  # a limit that no hang here may have to wait for
BY_PACE = {"hang_timeout_s": FULL_S, "shortest_hang_s": 1.0}
STUCK_WORKER = "torch.utils.data.get_worker_info() is not None and time.sleep(9999)"


@pytest.mark.slow
def test_a_loader_whose_workers_never_answer_costs_what_the_jobs_pace_says(make_session):
    session = start(make_session, job(item=STUCK_WORKER), unchanged=True, **BY_PACE)
    session.wait_hello()
    session.run_plan([Block("own", (), 10)])
    began = time.monotonic()
    failure = failure_of(session.run_plan, [Block("stuck", (KnobChoice("num_workers", 1),), 10)])
    assert failure.kind == "hang" and "longest gap before" in failure.detail, failure
    assert time.monotonic() - began < FULL_S / 3


@pytest.mark.slow
def test_a_step_that_sleeps_for_ever_is_found_in_a_fixed_run(make_session):
    source = job(step="optimizer.step(); step == 50 and time.sleep(9999)")
    session = start(
        make_session,
        source,
        config=SessionConfig("fixed", "", steps=1000, max_seconds=100.0),
        **BY_PACE,
    )
    session.wait_hello()
    began = time.monotonic()
    failure = failure_of(session.wait_record)
    line = next(
        i
        for i, text in enumerate((session.workdir / "job0.py").read_text().splitlines(), 1)
        if "sleep(9999)" in text
    )
    assert failure.kind == "hang" and failure.where == f"job0.py:{line}", failure
    assert time.monotonic() - began < FULL_S / 3


PAUSES = {
    "computes": "while step == 20 and time.monotonic() < started + 4: pass",
    "waits for a program of its own, which computes": (
        "import subprocess, sys; step == 20 and subprocess.run("
        "[sys.executable, '-c', 'import time; t = time.time()\\nwhile time.time() < t + 4: pass'],"
        " env={})"
    ),
    "sleeps as it did before": "time.sleep({6: 0.4, 20: 5}.get(step, 0))",
}


@pytest.mark.slow
@pytest.mark.parametrize("pause", PAUSES.values(), ids=PAUSES)
def test_a_long_pause_is_no_hang(make_session, monkeypatch, pause):
    """At the pace of the other iterations, it would be one."""
    monkeypatch.setattr("autotune_trials.session.silence.PROGRESS_S", 0.1)
    line = f"optimizer.step(); started = time.monotonic()\n            {pause}"
    session = start(
        make_session,
        job(step=line),
        config=SessionConfig("fixed", "", steps=40),
        hang_timeout_s=FULL_S,
        shortest_hang_s=1.5,
    )
    session.wait_hello()
    assert len(session.wait_record().losses) >= 40


@pytest.mark.slow
def test_minutes_before_the_first_iteration_are_no_hang_where_they_were_announced(
    make_session, monkeypatch
):
    monkeypatch.setattr("autotune_trials.session.silence.PROGRESS_S", 0.1)
    starting = "torch.utils.data.get_worker_info() is not None and i == 0 and time.sleep(4)"
    session = start(make_session, job(item=starting), hang_timeout_s=FULL_S, shortest_hang_s=0.5)
    session.wait_hello()
    session.run_plan([Block("own", (), 10)])
    [report] = session.run_plan(
        [Block("slow", (KnobChoice("num_workers", 1),), 10, slow_start=True)]
    )
    assert len(report.window.times_s) == 10


@pytest.mark.slow
def test_what_other_settings_make_slow_is_not_the_jobs_pace(make_session):
    pace = SlowestGap()
    slow = "torch.utils.data.get_worker_info() is not None and time.sleep(0.1)"
    session = start(make_session, job(item=slow), unchanged=True, pace=pace, **BY_PACE)
    session.wait_hello()
    session.run_plan([Block("own", (), 10)])
    own_s = pace.slowest_s
    session.run_plan([Block("slow", (KnobChoice("num_workers", 1),), 10)])
    assert 0 < own_s == pace.slowest_s


@pytest.mark.parametrize(
    ("slowest_s", "limit_s"),
    [
        (0.0, 180.0),
        (0.01, 15.0),
        (0.3, 15.0),
        (1.0, 50.0),
        (4.0, 180.0),
        (50.0, 180.0),
        (100.0, 300.0),
    ],
)
def test_the_limit_for_a_job_that_does_nothing(slowest_s, limit_s):
    assert idle_limit_s(slowest_s, 180.0) == limit_s
    assert slowest_s < limit_s <= working_limit_s(slowest_s, 180.0)


def test_a_limit_that_the_user_set_is_not_undercut():
    assert idle_limit_s(0.01, 660.0, 600.0) == 600.0
    assert idle_limit_s(0.01, 70.0, 10.0) == 10.0
