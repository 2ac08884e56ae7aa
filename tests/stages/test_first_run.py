"""OBSERVE runs the bare job once, like the confirmation, before anything is searched."""

from __future__ import annotations

import math
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.errors import BaselineError, InputError
from autotune.executors.base import WALL_S, FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import MIN_SECONDS, counted_times, wall_s
from autotune.stages.observe import first_epoch_s, first_run
from autotune.tracking import open_tracker
from autotune.verdict.iterations import later_epoch
from autotune_trials.protocol.messages import Record, Window


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


@pytest.mark.parametrize(("startup_s", "told"), [(4.0, False), (40.0, False), (80.0, True)])
def test_that_a_proof_exceeds_the_budget_is_told_after_a_long_first_run(
    startup_s: float, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise once, before the search, with all that the run needs."""

    def waits(request: FixedRun, record: Record) -> Record:
        return replace(record, notes={**record.notes, WALL_S: startup_s + 5.0})

    spec = job(tmp_path, "{amp_dtype: [bfloat16]}", "budget: {minutes: 5}\n")
    run(tmp_path, Machine(table(Loss()), waits), spec, shown="auto")
    out = capsys.readouterr().out
    assert ("one run of this job takes" in out) is told
    assert not told or out.index("one run of this job") < out.index("bottleneck")
    assert ("confirming one finalist takes" in out) is (startup_s > 4.0)


def test_a_loss_that_is_nan_is_told_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(request: FixedRun, record: Record) -> Record:
        return replace(record, losses=(*record.losses[:6], *[math.nan] * len(record.losses[6:])))

    result = run(tmp_path, Machine(table(Loss()), broken), shown="auto")
    said = capsys.readouterr().out
    assert said.index("the job's own loss is NaN or infinite at step 7") < said.index("== search")
    assert result.verdict != "tuned"


def test_what_a_job_says_as_it_exits_is_told_once(tmp_path: Path) -> None:
    said = "no data at /data"

    def exits(request: FixedRun, record: Record) -> Record:
        raise SessionFailed("crash", f"exit code 1: {said}", log_tail=said)

    with pytest.raises(BaselineError) as failed:
        run(tmp_path, Machine(table(Loss()), exits))
    assert str(failed.value).count(said) == 1


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


def test_a_limit_below_the_memory_of_the_job_itself_is_refused_before_the_search(
    tmp_path: Path,
) -> None:
    spec = job(tmp_path, "{optimizer_impl: [fused]}", "constraints: {host_memory_gib: 0.25}\n")
    planted = table(Loss(), factors={"optimizer_impl": {"fused": 0.8}})
    with pytest.raises(InputError, match="the unchanged job takes 1.00 GiB") as refused:
        run(tmp_path, Machine(planted), spec)
    assert "more than 1.00" in str(refused.value)


@pytest.mark.parametrize(("evaluation_s", "waits"), [(5.0, True), (25.0, False)])
def test_a_live_session_waits_for_an_epoch_that_is_short_with_its_evaluation(
    evaluation_s: float, waits: bool
) -> None:
    """The limit is a twentieth of ten minutes: 30 s. The epoch trains for 10 s."""
    window = Window(
        (0.1,) * 240,
        (32.0,) * 240,
        {},
        turnovers_s=(0.1, 0.1),
        away_s=2 * evaluation_s,
        epoch_iterations=100,
    )
    context: Any = SimpleNamespace(spec=SimpleNamespace(budget=SimpleNamespace(minutes=10)))
    assert (first_epoch_s(context, Record(0, window, (), ())) > 0) is waits


EPOCHS = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(900, 4)), batch_size=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in loader:
        time.sleep(0.005)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    with torch.no_grad():
        model(x)
        time.sleep(0.5)
"""


@pytest.mark.slow
def test_it_goes_on_to_the_second_epoch_where_that_is_near(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EPOCHS)
    (tmp_path / "job.yaml").write_text("command: python train.py\ntracking: {uri: null}\n")
    spec, run_dir = load_job(tmp_path / "job.yaml"), tmp_path / "run"
    with (
        closing(Journal(run_dir / "journal.jsonl", lambda before: before)) as journal,
        closing(LocalExecutor(spec, run_dir)) as executor,
        open_progress("quiet", 60.0) as progress,
    ):
        tracker = open_tracker(None, "e", run_dir)
        record = first_run(RunContext(spec, executor, journal, progress, tracker, run_dir))
    window = record.window
    assert window.epoch_iterations == 900 and later_epoch(window) == 900
    assert sum(counted_times(window)) > MIN_SECONDS and len(counted_times(window)) < 1000
    assert 0.5 < window.away_s / len(window.turnovers_s) < 0.7
    assert wall_s(record) > sum(window.times_s) + window.away_s


def test_a_job_too_slow_for_its_budget_is_told_so(tmp_path: Path) -> None:
    """In the replay, max_seconds ends a window as it does in a real job."""
    machine = Machine(table(Loss(), cost_s=2.0 / 32, noise=0.005))
    with pytest.raises(
        BaselineError, match=r": in the \d+ s that budget.minutes leaves a run, it"
    ) as e:
        run(tmp_path, machine, clock=lambda _: machine.elapsed_s)
    # 40 steps of 2 s and a slow start; five pairs of such runs get 0.6 of the budget
    (minutes,) = re.findall(
        r"raise budget.minutes to (\d+): .*, and a proof takes 10", e.value.remedy
    )
    assert 22 <= int(minutes) <= 40
