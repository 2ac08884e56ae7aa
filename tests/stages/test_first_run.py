"""OBSERVE runs the bare job once, as the confirmation will: before anything is searched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, run, table

from autotune.errors import BaselineError
from autotune.executors.base import FixedRun, SessionFailed
from autotune_trials.protocol.messages import Record


def test_it_comes_first_and_is_not_made_twice(tmp_path: Path) -> None:
    machine = Machine(table(Loss()))
    result = run(tmp_path, machine)
    assert result.verdict == "tuned" and result.loss.verdict == "unchanged"
    assert (machine.requests[0].label, machine.requests[0].config) == ("first-run", {})
    again = Machine(table(Loss()))
    run(tmp_path, again)
    assert again.requests == [], "it is in the journal"


@pytest.mark.parametrize("kind", ["crash", "killed"])
def test_a_job_that_the_machine_disturbs_once_is_run_again(tmp_path: Path, kind: str) -> None:
    failures = iter([SessionFailed(kind, "exit code 1")])

    def fails_once(request: FixedRun, record: Record) -> Record:
        if failure := next(failures, None):
            raise failure
        return record

    machine, quiet = Machine(table(Loss()), fails_once), Machine(table(Loss()))
    assert run(tmp_path, machine).verdict == run(tmp_path / "quiet", quiet).verdict == "tuned"
    made, needed = ([r.label for r in m.requests].count("first-run") for m in (machine, quiet))
    assert made == needed + 1


def test_a_job_too_short_is_refused_before_any_trial(tmp_path: Path) -> None:
    def short(request: FixedRun, record: Record) -> Record:
        window = replace(
            record.window,
            times_s=record.window.times_s[:24],
            samples=record.window.samples[:24],
            data_s=record.window.data_s[:24],
        )
        return replace(record, window=window, ended_early=True)

    machine = Machine(table(Loss()), short)
    with pytest.raises(BaselineError, match="ended after 24 optimizer steps"):
        run(tmp_path, machine)
    assert len(machine.requests) == 1
