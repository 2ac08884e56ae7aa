"""Runs of a pair alternate in slices if job and machine allow it, else run one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.executors.base import Executor, FixedRun, SessionFailed
from autotune.executors.interleave import SLICES
from autotune.results import Written
from autotune.stages.measuring import interleaving
from autotune_trials.protocol.messages import Record

ROOMY = {"cores": 4, "bfloat16": "native", "available_gib": 64.0}


class Both(Machine):
    """Runs two at once; run number ``fails`` fails."""

    interleaves = True
    fails = 0
    made = 0

    def run_interleaved(
        self, first: FixedRun, second: FixedRun, beside: Executor | None = None
    ) -> tuple[Record, Record]:
        self.made += 1
        if self.made == self.fails:
            raise SessionFailed("crash", "Address already in use")
        records = [self.run_fixed(request) for request in (first, second)]
        one, other = (replace(r, notes={**r.notes, SLICES: 8}) for r in records)
        return one, other


def small(folder: Path, extra: str = "") -> Any:
    return job(folder, "{amp_dtype: [bfloat16]}", extra)


def both(**machine: Any) -> Both:
    return Both(table(Loss(), {"amp_dtype": {"bfloat16": 0.6}}, machine={**ROOMY, **machine}))


def test_every_pair_is_made_in_slices(tmp_path: Path) -> None:
    machine = both()
    result = run(tmp_path, machine, small(tmp_path))
    assert result.verdict == "tuned" and result.confirmation is not None
    assert machine.made >= result.confirmation.pairs
    orders = [r.label.split("-")[1] for r in machine.confirmed() if not r.label.endswith("again")]
    assert orders[:4] == ["reference", "candidate", "candidate", "reference"]


def test_where_two_at_once_fail_they_run_one_after_the_other(tmp_path: Path, capfd) -> None:
    machine = both()
    machine.fails = 3
    result = run(tmp_path, machine, small(tmp_path), shown="auto")
    assert result.verdict == "tuned" and machine.made == 3
    assert "Address already in use" in capfd.readouterr().out
    again = both()
    run(tmp_path, again, small(tmp_path))
    assert not again.made, "nor does a resumed run try it again"


@pytest.mark.parametrize(
    ("machine", "extra", "why"),
    [
        ({"available_gib": 0.001}, "", "may need"),
        ({}, "side_effects: {put_back: false}\n", "not put back"),
    ],
)
def test_without_room_or_with_files_left_they_do_not(
    machine: dict, extra: str, why: str, tmp_path: Path
) -> None:
    tight = both(**machine)
    assert run(tmp_path, tight, small(tmp_path, extra)).verdict == "tuned"
    assert not tight.made
    assert why in (tmp_path / "run" / "journal.jsonl").read_text()


def test_a_candidate_with_workers_runs_alone(tmp_path: Path) -> None:
    """Until all of them are stopped at a slice's end, workers would make batches for nothing."""
    machine = both()
    machine.table = replace(machine.table, factors={"num_workers": {"2": 0.5}})
    result = run(tmp_path, machine, job(tmp_path, "{num_workers: [2]}"))
    assert result.knobs == {"num_workers": 2} and not machine.made
    assert result.confirmation is not None and not result.confirmation.interleaved


def test_a_job_that_writes_files_has_no_second_process_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(removed=("checkpoint.pt",))
    monkeypatch.setattr(interleaving, "summary", lambda *_: written)
    machine = both()
    assert run(tmp_path, machine, small(tmp_path)).verdict == "tuned"
    assert not machine.made
    assert "writes files (checkpoint.pt)" in (tmp_path / "run" / "journal.jsonl").read_text()
