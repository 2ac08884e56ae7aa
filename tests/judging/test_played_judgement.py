"""Whole judgements of simulated machines: the sides' runs are replayed, everything that judges them
is real.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay import ReplayExecutor, ReplayTable

from autotune.errors import BaselineError, InputError, Interrupted
from autotune.executors.base import Executor, FixedRun, SessionFailed
from autotune.executors.interleave import SLICES
from autotune.job.spec import JobSpec
from autotune.judging.records import Judgement
from autotune.judging.run import judge_job
from autotune.judging.shown import markdown
from autotune.judging.sides import Side, common, load_side
from autotune.results import Written
from autotune.stages.measuring import may_interleave
from autotune.verdict.words import FIRST_EPOCH
from autotune_trials.protocol.messages import Hello, Record

ALIKE = ReplayTable(cost_s=0.0005)
SETTINGS = {"lr": 1e-3, "weight_decay": 0.01}
Alter = Callable[[FixedRun, Record], Record]


class Machine(ReplayExecutor):
    """The machine of one side; its records and what it reports can be altered."""

    loader_key = ""

    def __init__(
        self,
        table: ReplayTable = ALIKE,
        alter: Alter = lambda request, record: record,
        torch: str = "2.7.1",
        **fingerprint: Any,
    ) -> None:
        super().__init__(table)
        self.alter, self.torch, self.labels = alter, torch, list[str]()
        print_ = {"optimizers": [{"name": "AdamW", "groups": [SETTINGS]}], "dataset": "Images"}
        self.fingerprint = {**print_, **fingerprint}

    def run_fixed(self, request: FixedRun) -> Record:
        self.last_hello = self.hello()
        self.labels.append(request.label)
        record = replace(super().run_fixed(request), fingerprint=self.fingerprint)
        return self.alter(request, record)

    def hello(self) -> Hello:
        hello = super().hello()
        machine = replace(hello.machine, torch_version=self.torch)
        return replace(hello, fingerprint=self.fingerprint, machine=machine)


class Both(Machine):
    """Runs two sides at once; run number ``fails`` fails."""

    interleaves = True
    made = fails = 0

    def run_interleaved(
        self, first: FixedRun, second: FixedRun, beside: Executor | None = None
    ) -> tuple[Record, Record]:
        assert isinstance(beside, Both) and beside is not self
        self.made += 1
        if self.made == self.fails:
            raise SessionFailed("crash", "Address already in use")
        records = self.run_fixed(first), beside.run_fixed(second)
        one, other = (replace(r, notes={**r.notes, SLICES: 8}) for r in records)
        return one, other


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Judgement]:
    """Judge two machines; the same call again resumes."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("")
        (tmp_path / name / "job.yaml").write_text(f"command: python train.py --side {name}\n")

    def judge(a: Machine, b: Machine, minutes: float = 1.0, **options: Any) -> Judgement:
        def executor_of(spec: JobSpec, *_: object, **__: object) -> Machine:
            return b if spec.workdir.name == "b" else a

        monkeypatch.setattr("autotune.executors.local.LocalExecutor", executor_of)
        asked = {"margin": 0.05, "progress_kind": "quiet", **options}
        return judge_job(both(tmp_path, minutes), tmp_path / "run", **asked)

    return judge


def both(folder: Path, minutes: float) -> tuple[Side, Side]:
    a, b = load_side("A", folder / "a" / "job.yaml"), load_side("B", folder / "b" / "job.yaml")
    return common(a, b, minutes)


def losses_times(factor: float, label: str = "judge") -> Alter:
    def alter(request: FixedRun, record: Record) -> Record:
        if not request.label.startswith(label):
            return record
        return replace(record, losses=tuple(factor * (x or 0.0) for x in record.losses))

    return alter


ROOMY = replace(ALIKE, machine={"cores": 4, "available_gib": 64.0})
SLOW = replace(ROOMY, cost_s=0.001)


def test_a_and_b_alternate_in_slices(play: Any) -> None:
    a, b = Both(ROOMY), Both(SLOW)
    found = play(a, b)
    assert (found.speed, found.interleaved) == ("slower", True)
    assert a.made + b.made == found.pairs and abs(a.made - b.made) <= 1, "each begins in turn"
    assert not any("candidate" in label for label in a.labels), "each in its own place"
    assert "alternating in slices" in markdown(found)


def test_where_two_at_once_fail_a_and_b_run_one_after_the_other(play: Any) -> None:
    a, b = Both(ROOMY), Both(SLOW)
    a.fails = 1
    found = play(a, b)
    assert (found.speed, found.interleaved) == ("slower", False)
    assert (a.made, b.made) == (1, 0)


def test_a_pair_that_changes_files_that_cannot_be_tracked_is_made_again(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = Both(ROOMY), Both(SLOW)

    def summary(run_dir: Path, _: Path) -> Written:
        return Written(noticed=("/shared/table.db",) if a.made and run_dir.name == "B" else ())

    monkeypatch.setattr(may_interleave, "summary", summary)
    found = play(a, b)
    assert (found.speed, found.interleaved) == ("slower", False)
    assert (a.made, b.made) == (1, 0)
    assert a.labels.count("judge-reference-0") > 1, "the first pair, too"


@pytest.mark.parametrize(
    ("table", "extra"),
    [
        (replace(ROOMY, machine={"available_gib": 0.001}), ""),
        (ROOMY, "side_effects: {put_back: false}\n"),
    ],
)
def test_without_room_or_with_files_left_they_do_not(
    table: ReplayTable, extra: str, play: Any, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        with open(tmp_path / name / "job.yaml", "a") as file:
            file.write(extra)
    a, b = Both(table), Both(table)
    assert play(a, b).speed == "same" and not a.made + b.made


def test_a_job_tuned_for_its_energy_is_not_judged_by_it(tmp_path: Path, play: Any) -> None:
    for name in ("a", "b"):
        with open(tmp_path / name / "job.yaml", "a") as file:
            file.write("objective: energy\n")
    with pytest.raises(InputError, match="judge compares times"):
        play(Machine(), Machine())


def test_a_side_that_was_observed_when_the_user_stopped_is_observed_again(play: Any) -> None:
    def stop(request: FixedRun, record: Record) -> Record:
        if request.label == "profile-A":
            signal.raise_signal(signal.SIGINT)
        return record

    with pytest.raises(Interrupted):
        play(Machine(alter=stop), Machine())
    again = Machine()
    assert play(again, Machine()).speed == "same"
    assert again.labels.count("profile-A") == 1


def test_what_is_finished_goes_on_where_more_is_asked(
    play: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = replace(ALIKE, block_noise=0.1)
    a, b = Machine(noisy), Machine(noisy)
    short = play(a, b, minutes=1e-4, progress_kind="auto")
    assert (short.speed, short.pairs) == ("undecided", 5)
    assert "undecided after 5 pairs" in short.speed_reason
    made = len(a.labels)
    assert play(a, b, minutes=1e-4) == short and len(a.labels) == made
    told = "".join(capsys.readouterr())
    assert "judged at 20" in told and told.count("5 pairs are always made") == 1
    longer = play(a, b)
    assert longer.pairs > 5 and "judge-reference-0" not in a.labels[made:]
    wider = play(a, b, margin=0.49)
    assert (wider.speed, wider.margin) == ("same", 0.49)
    made = len(a.labels)
    assert play(a, b, margin=0.49, minutes=2).speed == "same" and len(a.labels) == made


@pytest.mark.parametrize(("iterations", "said"), [(50, False), (5000, True)])
def test_it_says_that_no_run_reached_the_second_epoch(
    play: Any, iterations: int, said: bool
) -> None:
    machine = Machine(replace(ALIKE, epoch_iterations=iterations))
    assert (FIRST_EPOCH in play(machine, machine).speed_reason) is said


@pytest.mark.parametrize(
    ("a", "b", "loss", "said"),
    [
        (1.0, 1.0 + 1e-9, "unchanged", ""),
        (1.0, 1.0, "unchanged", "exact"),
        (1.0, 1.0 + 1e-9, "changed", "exact"),
        (1.0 + 1e-9, 1.0 + 1e-9, "undecided", "exact"),
    ],
)
def test_exact_asks_for_the_same_bits(play: Any, a: float, b: float, loss: str, said: str) -> None:
    """``a`` scales the losses of A's runs, except the one that repeats a run."""
    again = losses_times(a, "judge-reference-0")
    first = Machine(alter=lambda q, r: r if q.label.endswith("again") else again(q, r))
    it = play(first, Machine(alter=losses_times(b)), loss=said)
    assert it.loss == loss, it.loss_verdict.reason
    assert ("bit" in it.loss_verdict.reason) == (said == "exact")


@pytest.mark.parametrize(
    ("b", "loss", "said"),
    [
        ({"dataset": "Pictures", "loss_modules": [], "modules_in_training": 9}, "unchanged", ""),
        (
            {"optimizers": [{"name": "AdamW", "groups": [{**SETTINGS, "lr": 1e-2}]}]},
            "changed",
            "settings differ: optimizers.0.groups.0.lr: 0.001 in A, 0.01 in B",
        ),
        (
            {"optimizers": [{"name": "AdamW", "groups": [{**SETTINGS, "decoupled": True}]}]},
            "changed",
            "decoupled: missing in A, True in B",
        ),
        (
            {
                "torch": "2.8.0",
                "optimizers": [{"name": "AdamW", "groups": [{**SETTINGS, "decoupled": True}]}],
            },
            "unchanged",
            "",
        ),
    ],
)
def test_the_arrangement_of_the_source_is_no_setting(
    play: Any, b: dict[str, Any], loss: str, said: str
) -> None:
    it = play(Machine(), Machine(**b))
    assert it.loss == loss and said in it.loss_verdict.reason, it.loss_verdict.reason
    torch = b.get("torch", "2.7.1")
    assert it.sides[1].torch_version == torch
    assert ("torch 2.7.1 (A), 2.8.0 (B)" in markdown(it)) == (torch == "2.8.0")


def test_batches_that_vary_are_the_same_work(play: Any) -> None:
    def other(request: FixedRun, record: Record) -> Record:
        """As if the median came from another part of an epoch."""
        samples = (33.0,) * len(record.window.samples)
        seen = replace(record, window=replace(record.window, samples=samples))
        return seen if request.label == "profile-B" else record

    assert play(Machine(), Machine(alter=other)).loss == "unchanged"
    with pytest.raises(InputError, match=r"samples per iteration: 32\.0 in A, 64\.0 in B"):
        play(Machine(), Machine(replace(ALIKE, samples=64.0)), fresh=True)


def test_the_side_that_fails_is_named_with_its_command(play: Any) -> None:
    def crash(request: FixedRun, record: Record) -> Record:
        if request.label.startswith("judge"):
            raise SessionFailed("crash", "exit code 1")
        return record

    def short(request: FixedRun, record: Record) -> Record:
        window = replace(record.window, times_s=record.window.times_s[:20], samples=(32.0,) * 20)
        short = replace(record, window=window, ended_early=True, losses=record.losses[:20])
        return short if request.label.startswith("judge") else record

    for alter, said in ((crash, "the job fails: exit code 1"), (short, "20 optimizer steps")):
        with pytest.raises(BaselineError) as failed:
            play(Machine(), Machine(alter=alter), fresh=True)
        assert failed.value.found.startswith("B, ") and said in failed.value.found
        assert failed.value.where == "python train.py --side b"
        assert "unchanged" not in failed.value.found and "tune" not in failed.value.remedy


def test_a_class_of_loss_that_is_none_is_refused_at_once(play: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="random_stream"):
        play(Machine(), Machine(), loss="random_stream")
    assert not (tmp_path / "run").exists()
