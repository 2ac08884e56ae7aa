"""Ctrl-C and SIGTERM: the current measurement finishes, but SIGTERM does not wait forever; what a
stop interrupts is no failure.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from replay import ReplayExecutor
from replayed import CHANGES, Machine, job, table

from autotune.errors import BaselineError, Interrupted
from autotune.executors.base import FixedRun, LiveSession, SessionFailed
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages import context as benches
from autotune.stages.context import RunContext, Stop
from autotune.tracking import Tracker
from autotune.tuner import tune
from autotune_trials.protocol.messages import Block, BlockReport, Record

pytestmark = pytest.mark.usefixtures("nothing_is_left")
LATER_S = 0.15


@pytest.fixture
def stop() -> Iterator[Stop]:
    made = Stop()
    with open_progress("quiet", 60.0) as progress, made.listening(progress):
        yield made


def told_later() -> None:
    threading.Timer(LATER_S, os.kill, (os.getpid(), signal.SIGTERM)).start()


def test_sigterm_lets_the_measurement_end_if_that_is_soon(stop: Stop) -> None:
    signal.raise_signal(signal.SIGTERM)
    time.sleep(0.2)
    with pytest.raises(Interrupted, match="stopped on request"):
        stop.check()


def test_sigterm_ends_a_measurement_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, stop: Stop
) -> None:
    monkeypatch.setattr(benches, "TERM_WITHIN_S", 0.3)
    asked_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _sleep_after(signal.SIGTERM, 30)
    assert 0.2 < time.monotonic() - asked_s < 20


def test_ctrl_c_waits_for_the_second_one(monkeypatch: pytest.MonkeyPatch, stop: Stop) -> None:
    monkeypatch.setattr(benches, "TERM_WITHIN_S", 0.1)
    _sleep_after(signal.SIGINT, 0.5)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_when_nobody_listens_any_more_no_alarm_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "TERM_WITHIN_S", 60)
    before = [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    ]
    with open_progress("quiet", 60.0) as progress, Stop().listening(progress):
        signal.raise_signal(signal.SIGTERM)
    assert [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    ] == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def _stopped_twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def _stopped_with_the_job() -> None:
    signal.raise_signal(signal.SIGTERM)
    raise BaselineError("the unchanged job is killed")


@pytest.mark.parametrize("ended", [_stopped_twice, _stopped_with_the_job])
def test_a_stop_is_told_as_one_however_it_arrives(ended: Callable[[], None]) -> None:
    with (
        open_progress("quiet", 60.0) as progress,
        pytest.raises(Interrupted, match="stopped on request"),
        Stop().listening(progress),
    ):
        ended()


def test_a_job_that_fails_by_itself_is_no_stop() -> None:
    with (
        open_progress("quiet", 60.0) as progress,
        pytest.raises(BaselineError),
        Stop().listening(progress),
    ):
        raise BaselineError("the unchanged job fails")


def _sleep_after(number: signal.Signals, seconds: float) -> None:
    signal.raise_signal(number)
    time.sleep(seconds)


# ------------------------------------------ the whole process tree is terminated, the job first


class EndedFirst(ReplayExecutor):
    """The job (``"block"``) or a worker of it (``"worker"``) ends at the third candidate, or the
    job ends in a candidate's first fresh process (``"fixed"``); the tuner gets the signal later.
    """

    def __init__(self, what: str) -> None:
        super().__init__(table(CHANGES))
        self.what, self.candidates = what, 0

    def open_live(self) -> LiveSession:
        session = super().open_live()
        measure = session.measure

        def ended(blocks: list[Block]) -> list[BlockReport]:
            self.candidates += bool(blocks[0].knobs)
            if self.what in ("block", "worker") and self.candidates == 3:
                told_later()
                if self.what == "block":
                    raise SessionFailed("crash", "ended by SIGTERM: it printed nothing")
                return [
                    BlockReport(
                        blocks[0].id,
                        0,
                        None,
                        error="crash: DataLoader worker (pid 7) is killed by signal: Terminated.",
                    )
                ]
            return measure(blocks)

        session.measure = ended  # type: ignore[method-assign]
        return session

    def run_fixed(self, request: FixedRun) -> Record:
        if self.what == "fixed" and request.config:
            told_later()
            raise SessionFailed("crash", "exit code 143 (SIGTERM): it printed nothing")
        return super().run_fixed(request)


@pytest.mark.parametrize("what", ["block", "worker", "fixed"])
def test_what_was_in_flight_is_unfinished_and_no_failure(
    what: str, stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "ON_ITS_WAY_S", 30)  # it is waited for no longer than it takes
    journal = Journal(tmp_path / "run" / "journal.jsonl", lambda before: before)
    machine = EndedFirst(what)
    with open_progress("quiet", 60.0) as progress, pytest.raises(Interrupted):
        tune(
            RunContext(
                job(tmp_path), machine, journal, progress, Tracker(), tmp_path / "run", stop=stop
            )
        )
    journal.close()
    entries = [
        json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    ]
    assert {e["data"]["state"] for e in entries if e["kind"] == "trial"} <= {"complete", "pruned"}
    assert not [e for e in entries if e["kind"] == "finished" or "|candidate|" in e["key"]]


def test_what_was_disturbed_is_not_measured_again_once_the_user_has_asked(
    stop: Stop, tmp_path: Path
) -> None:
    """The current measurement is a single run of the job, not three: on a busy machine, three took
    more than two minutes.
    """

    def busy(request: FixedRun, record: Record) -> Record:
        if [r.label for r in machine.confirmed()] == ["confirm1-reference-0"]:
            signal.raise_signal(signal.SIGINT)
        return replace(record, window=replace(record.window, foreign_load=1.5))

    journal = Journal(tmp_path / "run" / "journal.jsonl", lambda before: before)
    machine = Machine(table(CHANGES), busy)
    with closing(journal), open_progress("quiet", 60.0) as progress, pytest.raises(Interrupted):
        tune(
            RunContext(
                job(tmp_path), machine, journal, progress, Tracker(), tmp_path / "run", stop=stop
            )
        )
    assert [r.label for r in machine.confirmed()] == ["confirm1-reference-0"]
    assert journal.find("disturbed", "confirm1-reference-0") is None, (
        "it is not counted either: nothing was measured again"
    )
