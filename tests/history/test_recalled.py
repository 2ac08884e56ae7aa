"""The same job again: its answer is proven again by the same rules, and there is no search unless
the proof fails.
"""

from __future__ import annotations

import math
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played import SPACE, Played, job
from replay import Loss, ReplayExecutor, ReplayTable
from tiers import slow

from autotune.executors.base import FixedRun
from autotune.export.fingerprint import here
from autotune.history import use
from autotune.history.store import Store
from autotune.journal import Journal
from autotune.report.result_file import write_result
from autotune.running import _environment_changes, _other_torch
from autotune.stages import recall
from autotune_spaces.codec import encode
from autotune_trials.protocol.messages import Record

FACTORS = {
    "num_workers": {"1": 0.85, "2": 0.7},
    "amp_dtype": {"bfloat16": 0.6},
    "optimizer_impl": {"fused": 0.95},
}
TABLE = ReplayTable(
    cost_s=0.0005,
    factors=FACTORS,
    otherwise=1.0,
    machine={"cores": 4, "bfloat16": "native"},
    block_noise=0.01,
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Played, Path]:
    folder = tmp_path_factory.mktemp("learnt")
    return Played(folder / "first", TABLE, folder / "history.sqlite"), folder / "history.sqlite"


@pytest.fixture
def store(learnt: tuple[Played, Path], tmp_path: Path) -> Path:
    """A copy, so that one test's additions do not reach the next."""
    path = tmp_path / "history.sqlite"
    path.write_bytes(learnt[1].read_bytes())
    return path


def _edit(store: Path, **fields: object) -> None:
    """Change the only run of the store."""
    (run,) = Store(store).runs()
    Store(store).forget([run.id])
    Store(store).add([replace(run, **fields)])


def test_the_second_run_proves_the_same_knobs_without_a_search(
    learnt: tuple[Played, Path], store: Path, tmp_path: Path
) -> None:
    first = learnt[0]
    second = Played(tmp_path / "second", TABLE, store, seed=1)
    assert first.result.knobs == second.result.knobs != {}
    assert second.result.verdict == "tuned" and second.result.loss.verdict == "unchanged"
    assert second.result.confirmation is not None and second.result.confirmation.pairs >= 5
    assert second.tried == [] and second.result.trials == ()
    assert (second.result.recalled.kind, second.result.recalled.outcome) == ("exact", "proven anew")
    assert len(Store(store).runs()) == 2


def test_gains_are_remembered_with_what_they_are(store: Path, tmp_path: Path) -> None:
    knob = next(iter(Store(store).runs()[0].gains))
    _edit(store, at_least=(knob,))
    second = Played(tmp_path / "second", TABLE, store, seed=1)
    assert [g.knob for g in second.result.gains if g.at_least] == [knob]


def test_the_first_look_at_an_answer_is_remembered_beside_its_proof(
    store: Path, tmp_path: Path
) -> None:
    Played(tmp_path, TABLE, store, seed=1)
    with closing(Journal(tmp_path / "run" / "journal.jsonl", lambda before: before)) as journal:
        made = {entry.key.split("|")[0]: entry.data["record"] for entry in journal.all("run")}
        keys = [entry.key for entry in journal.all("run")]
    assert len(keys) == len(set(keys)), "a resumed run decides by the same record"
    assert made["recalled-look"] == "recalled-look-candidate-0.json"


def test_without_history_nothing_is_asked_or_told(store: Path, tmp_path: Path) -> None:
    run = Played(tmp_path / "second", TABLE, None)
    assert run.tried and run.result.recalled.kind == ""
    assert len(Store(store).runs()) == 1


def test_a_team_that_tuned_it_is_enough(store: Path, tmp_path: Path) -> None:
    run = Played(tmp_path / "mine", TABLE, tmp_path / "own.sqlite", team=store)
    assert run.result.recalled.outcome == "proven anew"
    assert len(Store(store).runs()) == len(Store(tmp_path / "own.sqlite").runs()) == 1


def test_other_software_proves_the_answer_again(store: Path, tmp_path: Path) -> None:
    newer = replace(TABLE, machine={**TABLE.machine, "torch_version": "2.14.0"})
    run = Played(tmp_path / "newer", newer, store)
    assert (run.result.recalled.kind, run.result.recalled.outcome) == (
        "other-software",
        "proven anew",
    )
    assert run.tried == []


@pytest.mark.parametrize("unlike", ["code", "machine", "model"])
def test_what_is_not_the_same_is_searched(store: Path, tmp_path: Path, unlike: str) -> None:
    table, code = TABLE, ""
    if unlike == "code":
        code = "# edited"
    elif unlike == "machine":
        table = replace(TABLE, machine={**TABLE.machine, "cpu_model": "another"})
    else:
        table = replace(TABLE, job={"intra_op_threads": 2})
    run = Played(tmp_path / "other", table, store, code=code)
    assert run.tried and run.result.recalled.kind == "near"


def test_an_answer_that_no_longer_applies_is_a_miss(store: Path, tmp_path: Path) -> None:
    """The value is no longer in the search space."""
    run = Played(tmp_path / "narrower", TABLE, store, space=SPACE.replace("[1, 2]", "[1]"))
    assert run.tried and run.result.recalled.outcome != "proven anew"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"minutes": 5.0}, {}),
        slow({"trials": 2}, {}),
        slow({"trials": 2}, {"trials": 3}),
        ({"space": SPACE.replace(", gc: auto", "")}, {}),
        ({"space": SPACE.replace("[1, 2]", "[2]")}, {}),
    ],
    ids=["more-time", "no-limit", "more-trials", "another-knob", "another-value"],
)
def test_a_larger_search_is_not_answered_by_a_smaller_one(
    first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "history.sqlite"
    assert Played(tmp_path / "small", TABLE, store, **first).result.knobs
    larger = Played(tmp_path / "large", TABLE, store, seed=1, **second)
    assert larger.tried and larger.result.recalled.outcome == "prior"
    again = Played(tmp_path / "again", TABLE, store, seed=2, **first)
    assert again.tried == [] and again.result.recalled.outcome == "proven anew"


@pytest.mark.parametrize(
    "fields",
    [{"space": (), "minutes": 0.0}, {"planned_steps": 500}, {"rules": "0"}],
    ids=["earlier-version", "another-length", "another-tolerance"],
)
def test_an_answer_to_another_question_only_orders_the_search(
    store: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    _edit(store, **fields)
    run = Played(tmp_path / "second", TABLE, store, seed=1)
    assert run.tried and run.result.recalled.outcome == "prior"


def test_a_run_is_kept_under_the_code_it_began_with(tmp_path: Path) -> None:
    store = tmp_path / "history.sqlite"
    Played(tmp_path / "first", TABLE, store, edited="# edited meanwhile")
    edited = Played(tmp_path / "second", TABLE, store, seed=1, code="# edited meanwhile")
    assert edited.tried and edited.result.recalled.kind == "near"
    as_it_was = Played(tmp_path / "third", TABLE, store, seed=2)
    assert as_it_was.result.recalled.outcome == "proven anew"


def test_another_torch_tunes_again_what_the_history_holds(
    learnt: tuple[Played, Path], store: Path, tmp_path: Path
) -> None:
    """A finished run that is not in the history is shown, and stays where it is."""
    spec = job(tmp_path / "job")
    run_dir = tmp_path / "job" / "run"
    seen = learnt[0].result.observation
    seen = replace(seen, machine=replace(seen.machine, torch_version="1.0.0"))
    run_dir.mkdir()
    write_result(replace(learnt[0].result, observation=seen), run_dir / "result.json")
    with closing(Journal(run_dir / "journal.jsonl", lambda before: before)) as journal:
        journal.append("study", "", {"digest": spec.digest(), "name": spec.name, "seed": 0})
        journal.append("finished", "", {})
    assert _other_torch(spec, run_dir, store) == ""
    with closing(Journal(run_dir / "journal.jsonl", lambda before: before)) as journal:
        journal.append("number", "", "r1")
    assert _other_torch(spec, run_dir, store) == "", "it was made with --no-history"
    _edit(store, id="r1")
    assert _other_torch(spec, run_dir, store).startswith("torch 1.0.0 → ")


def test_a_run_that_began_on_another_machine_says_so(
    learnt: tuple[Played, Path], tmp_path: Path
) -> None:
    spec = job(tmp_path / "job")
    seen = learnt[0].result.observation
    now = here(spec.command, dict(os.environ), spec.workdir)
    with closing(Journal(tmp_path / "journal.jsonl", lambda before: before)) as journal:
        assert _environment_changes(journal, spec) == "", "nothing was measured yet"
        journal.append("observation", "", encode(replace(seen, machine=now)))
        assert _environment_changes(journal, spec) == ""
        there = replace(now, cpu_model="Old CPU", torch_version="1.0.0")
        journal.append("observation", "", encode(replace(seen, machine=there)))
    with closing(Journal(tmp_path / "journal.jsonl", lambda before: before)) as journal:
        found = _environment_changes(journal, spec)
        assert "CPU: Old CPU then, " in found and "torch: 1.0.0 then, " in found


def test_a_job_that_a_wrapper_pins_to_a_core_runs_on_the_same_machine(
    learnt: tuple[Played, Path], tmp_path: Path
) -> None:
    spec = replace(job(tmp_path / "job"), command=("taskset", "-c", "0", "python", "train.py"))
    seen = learnt[0].result.observation
    now = here(job(tmp_path / "job").command, dict(os.environ), spec.workdir)
    with closing(Journal(tmp_path / "journal.jsonl", lambda before: before)) as journal:
        pinned = replace(now, cores=now.cores + 1)
        journal.append("observation", "", encode(replace(seen, machine=pinned)))
    with closing(Journal(tmp_path / "journal.jsonl", lambda before: before)) as journal:
        assert _environment_changes(journal, spec) == ""


def test_a_slower_baseline_is_a_regression_with_both_figures(
    learnt: tuple[Played, Path], store: Path, tmp_path: Path
) -> None:
    run = Played(tmp_path / "slower", replace(TABLE, cost_s=TABLE.cost_s * 1.4), store)
    recalled = run.result.recalled
    assert recalled.slower and recalled.outcome == "proven anew"
    assert recalled.recorded_iteration_s and recalled.iteration_s
    assert recalled.iteration_s / recalled.recorded_iteration_s == pytest.approx(1.4, rel=0.1)
    (line,) = [line for line in run.said[-1].splitlines() if '"warning"' in line]
    assert (
        f"{recalled.iteration_s * 1e3:.3g} ms" in line
        and f"{recalled.recorded_iteration_s * 1e3:.3g} ms" in line
    )
    again = Played(
        tmp_path / "usual", TABLE, learnt[1].with_name("usual.sqlite"), team=learnt[1], seed=4
    )
    assert not again.result.recalled.slower


COMPILED = {"space": "{amp_dtype: [bfloat16], compile_mode: [default]}"}


@pytest.mark.parametrize("cold_s", [30.0, 1e4])
def test_an_answer_that_compiles_is_charged_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold_s: float
) -> None:
    """The runs of the proof find the kernels that its first look has compiled."""
    table = replace(TABLE, cost_s=0.002, factors={**FACTORS, "compile_mode": {"default": 0.7}})
    store = tmp_path / "history.sqlite"
    assert "compile_mode" in Played(tmp_path / "first", table, store, **COMPILED).result.knobs
    monkeypatch.setattr(recall, "start_up_excess", lambda *_: cold_s)
    second = Played(tmp_path / "second", table, store, seed=1, **COMPILED).result
    if cold_s > 30:
        assert second.recalled.outcome == "not proven"
        assert "10000 s of start-up are paid back only after" in second.rejected[0].reason
        return
    assert second.recalled.outcome == "proven anew" and second.confirmation is not None
    assert {g.knob: g.start_up_s for g in second.gains} == {"amp_dtype": 0, "compile_mode": cold_s}
    training = second.confirmation.training
    assert training is not None
    assert training.cold_s - training.after_s == pytest.approx(cold_s, rel=0.05)


def test_a_loser_recorded_as_the_winner_is_not_adopted(store: Path, tmp_path: Path) -> None:
    _edit(store, answer={"gc": "freeze"}, log_gain=math.log(2.0))
    slow = replace(TABLE, factors={**FACTORS, "gc": {"freeze": 1.2}})
    run = Played(tmp_path / "fooled", slow, store)
    assert run.result.recalled.outcome == "not proven"
    assert "gc" not in run.result.knobs and run.result.knobs["amp_dtype"] == "bfloat16"
    assert run.result.rejected[0].config == {"gc": "freeze"}


def test_an_answer_that_changes_the_loss_now_is_not_adopted(store: Path, tmp_path: Path) -> None:
    run = Played(
        tmp_path / "changed",
        replace(TABLE, loss=Loss(changed_by={"amp_dtype": {"bfloat16": 0.2}})),
        store,
    )
    assert run.result.recalled.outcome == "not proven"
    assert run.result.verdict == "tuned" and "amp_dtype" not in run.result.knobs
    assert "loss changed" in run.result.rejected[0].reason


def test_an_answer_that_takes_too_much_memory_in_a_later_run_is_not_adopted(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss check needs a sixth pair, since the losses of the first five are far apart."""
    run_fixed = ReplayExecutor.run_fixed

    def grown(self: ReplayExecutor, request: FixedRun) -> Record:
        record = run_fixed(self, request)
        label, _, run_of = request.label.rpartition("-")
        if label != "recalled-candidate":
            return record
        if int(run_of) >= 5:
            return replace(record, window=replace(record.window, peak_memory_gib=4.0))
        shift = 0.991 if int(run_of) % 2 else 1.009
        return replace(record, losses=tuple((loss or 0.0) * shift for loss in record.losses))

    monkeypatch.setattr(ReplayExecutor, "run_fixed", grown)
    monkeypatch.setattr(use, "rules_of", lambda spec: "")  # as if it had been limited then
    _edit(store, rules="")
    limited = f"{SPACE}\nconstraints: {{host_memory_gib: 2}}"
    run = Played(tmp_path / "grown", TABLE, store, space=limited)
    assert run.result.recalled.outcome == "not proven"
    assert "more than host_memory_gib allows" in run.result.rejected[0].reason


def test_nothing_of_the_job_is_in_the_store(tmp_path: Path) -> None:
    """Neither the job's name, folder, command and own knobs, nor secrets."""
    space = (
        "{amp_dtype: [bfloat16], tea_leaves: {values: [green, black], default: black, via:"
        " '--leaves {}'}}"
    )
    table = replace(TABLE, factors={"amp_dtype": {"bfloat16": 0.6}, "tea_leaves": {"green": 0.7}})
    run = Played(
        tmp_path / "teahouse",
        table,
        tmp_path / "history.sqlite",
        space=space,
        code="api_key = 's3cretvalue'",
    )
    content = (tmp_path / "history.sqlite").read_bytes()
    for word in (
        b"tea_leaves",
        b"green",
        b"leaves",
        b"s3cret",
        b"train.py",
        str(tmp_path).encode(),
        b"Images",
        b"Net",
    ):
        assert word not in content, word
    again = Played(
        tmp_path / "again",
        table,
        tmp_path / "history.sqlite",
        space=space,
        code="api_key = 's3cretvalue'",
        seed=1,
    )
    assert again.result.recalled.outcome == "proven anew" and again.result.knobs == run.result.knobs
    assert "tea_leaves" in again.result.knobs


def test_a_recorded_answer_that_takes_longer_than_the_budget_says_so(
    store: Path, tmp_path: Path
) -> None:
    slow = replace(TABLE, startup_s=60.0)
    Played(tmp_path / "first", slow, store, minutes=60.0)
    Played(tmp_path / "second", slow, store, seed=1, minutes=3.0)
    said = (tmp_path / "second" / "progress.jsonl").read_text()
    assert "proving the recorded answer takes about" in said and "budget.minutes (3)" in said
