"""Runs of a pair alternate in slices if job and machine allow it, else run one after the other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.executors.base import Executor, FixedRun, SessionFailed
from autotune.executors.interleave import CROSSED, SLICES
from autotune.results import Observation, Written
from autotune.stages import observe
from autotune.stages.measuring import may_interleave
from autotune.stages.measuring.may_interleave import why_not
from autotune_spaces.codec import decode
from autotune_spaces.facts import ProcessFacts, ReaderFacts
from autotune_trials.protocol.messages import Record

ROOMY = {"cores": 4, "bfloat16": "native", "available_gib": 64.0}


class Both(Machine):
    """Runs two at once; run number ``fails`` fails, and in run number ``crosses`` one reads a file
    of the other.
    """

    interleaves = True
    fails = crosses = 0
    made = 0

    def run_interleaved(
        self, first: FixedRun, second: FixedRun, beside: Executor | None = None
    ) -> tuple[Record, Record]:
        self.made += 1
        if self.made == self.fails:
            raise SessionFailed("crash", "Address already in use")
        records = [self.run_fixed(request) for request in (first, second)]
        notes = {SLICES: 8, **({CROSSED: "/job/last.pt"} if self.made == self.crosses else {})}
        one, other = (replace(r, notes={**r.notes, **notes}) for r in records)
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


@pytest.mark.parametrize(("cpu_s", "alone"), [(0.01, False), (0.004, True), (None, True)])
def test_a_candidate_with_workers_runs_alone_if_they_wait(
    cpu_s: float | None, alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they wait for goes on while they are stopped. None: nothing is known of that."""
    reader = None if cpu_s is None else ReaderFacts(fetch_s=0.01, cpu_s=cpu_s)
    monkeypatch.setattr(observe, "reader_of", lambda *_: reader)
    machine = both()
    machine.table = replace(machine.table, factors={"num_workers": {"2": 0.5}})
    result = run(tmp_path, machine, job(tmp_path, "{num_workers: [2]}"))
    assert result.knobs == {"num_workers": 2} and result.confirmation is not None
    assert result.confirmation.interleaved != alone and bool(machine.made) != alone


@pytest.mark.parametrize(("children", "alone"), [(0, False), (2, True)])
def test_a_job_without_a_loader_has_no_processes_of_its_own_beside_another(
    children: int, alone: bool, tmp_path: Path
) -> None:
    machine = both()
    run(tmp_path, machine, small(tmp_path))
    journal = (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    [found] = [e["data"] for e in map(json.loads, journal) if e["kind"] == "observation"]
    observation = decode(Observation, found)
    own = replace(observation.job, loader=None, process=ProcessFacts(children=children))
    context = SimpleNamespace(executor=machine, spec=small(tmp_path))
    assert bool(why_not(context, replace(observation, job=own), 0.1, "")) == alone


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (Written(removed=("checkpoint.pt",), restored=("log.txt",)), ""),
        (
            Written(noticed=("table.db",)),
            "the job writes files whose changes cannot be tracked (table.db)",
        ),
        (Written(unkept={"a": "too large", "b": "same"}), "cannot be tracked (a, "),
    ],
)
def test_files_that_cannot_be_recorded_keep_the_runs_apart(
    written: Written, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(may_interleave, "summary", lambda *_: written)
    machine = both()
    assert run(tmp_path, machine, small(tmp_path)).verdict == "tuned"
    assert bool(machine.made) == (not why)
    assert why in (tmp_path / "run" / "journal.jsonl").read_text()


def test_a_pair_of_which_one_read_the_others_file_is_made_again(tmp_path: Path, capfd) -> None:
    machine = both()
    machine.crosses = 3
    result = run(tmp_path, machine, small(tmp_path), shown="auto")
    assert result.verdict == "tuned" and machine.made == 3
    assert result.confirmation is not None and not result.confirmation.interleaved
    assert "the two processes of a pair share a file (last.pt)" in capfd.readouterr().out
