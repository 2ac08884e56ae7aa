"""Two processes of a real job train in slices: never both at once, and each as if alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.executors.base import WALL_S, FixedRun, SessionFailed
from autotune.executors.interleave import CROSSED, FIRST_SLICE, SLICES
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec, SideEffects
from autotune_spaces.base import SearchSpace
from autotune_trials.protocol.messages import Record

JOB = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

def log(what):
    with open(f"{what}-{os.getpid()}.log", "a") as file:
        file.write(f"{time.monotonic()}\\n")

class Slow(Dataset):
    def __len__(self):
        return EPOCH * 4

    def __getitem__(self, index):
        log("item")
        ITEM
        time.sleep(0.002)
        return torch.randn(8)

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        for step, batch in enumerate(DataLoader(Slow(), batch_size=4, num_workers=WORKERS)):
            loss = (model(batch) - 1).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log("step")
            FAULT
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalExecutor]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    opened = []

    def make(
        epoch: int = 400,
        epochs: int = 1,
        workers: int = 0,
        fault: str = "pass",
        item: str = "pass",
        put_back: bool = False,
    ):
        values = {"EPOCHS": epochs, "EPOCH": epoch, "WORKERS": workers, "FAULT": fault}
        values["ITEM"] = item
        source = JOB
        for name, value in values.items():
            source = source.replace(name, str(value))
        (tmp_path / "job.py").write_text(source)
        spec = JobSpec(
            "job",
            (sys.executable, "job.py"),
            tmp_path,
            {},
            SearchSpace("none", ()),
            side_effects=SideEffects(put_back=put_back),
        )
        opened.append(LocalExecutor(spec, tmp_path / "run"))
        return opened[-1]

    yield make
    for executor in opened:
        executor.close()


def run(steps: int = 120, seed: int = 0, **more) -> FixedRun:
    return FixedRun({}, seed=seed, steps=steps, max_seconds=60.0, **more)


def logs(folder: Path, what: str) -> list[list[float]]:
    return [
        [float(line) for line in path.read_text().splitlines()]
        for path in folder.glob(f"{what}-*.log")
    ]


def overlaps(a: list[float], b: list[float]) -> int:
    """Number of changes between the processes in the merged log."""
    order = sorted([(t, 0) for t in a] + [(t, 1) for t in b])
    return sum(x[1] != y[1] for x, y in pairwise(order))


def test_they_take_turns_and_each_trains_as_if_it_were_alone(make, tmp_path: Path) -> None:
    executor = make(workers=1)
    alone = executor.run_fixed(run())
    for path in tmp_path.glob("*.log"):
        path.unlink()
    first, second = executor.run_interleaved(run(), run())
    for record in (first, second):
        assert record.losses == alone.losses and len(record.losses) == 120
        assert record.window.times_s and record.notes[WALL_S] > 0
    slices = first.notes[SLICES]
    assert slices == second.notes[SLICES] >= 6
    steps = sorted(logs(tmp_path, "step"))  # the first process began earlier
    assert len(steps) == 2 and overlaps(*steps) <= 2 * slices
    # one's work does not count in the other's iterations
    for record, own, other in zip((first, second), steps, steps[::-1], strict=True):
        waited_s = sum(b - a for a, b in pairwise(own) if any(a < t < b for t in other))
        assert sum(record.window.times_s[1:]) < own[-1] - own[0] - 0.5 * waited_s
    # the workers of the waiting process wait, too
    items = [sorted(sum(rows, [])) for rows in by_side(logs(tmp_path, "item"), steps)]
    assert overlaps(*items) <= 2 * slices + 2


def by_side(items: list[list[float]], steps: list[list[float]]) -> list[list[list[float]]]:
    """Logs of each side's workers, which start just before its first step."""
    first = [rows for rows in items if rows[0] < steps[0][0]]
    return [first, [rows for rows in items if rows not in first]]


WRITES = """
            if step == 5:
                os.makedirs("out", exist_ok=True)
                torch.save(model.state_dict(), "out/last.pt")
                open("mine.txt", "a").write("theirs")
                open(f"out/events-{os.getpid()}", "w").write("own")
            if READS and step == 60:
                model.load_state_dict(torch.load("out/last.pt"))
"""


@pytest.mark.parametrize("reads", [False, True])
def test_what_both_write_is_undone_and_reading_it_back_is_noticed(
    reads: bool, make, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    executor = make(fault=WRITES.replace("READS", str(reads)).strip(), put_back=True)
    first, second = executor.run_interleaved(run(), run())
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.py", "mine.txt", "run"]
    # last.pt was written by the second process when the first one read it
    last = str(tmp_path / "out" / "last.pt")
    for record in (first, second):
        assert record.notes.get(CROSSED) == (last if reads else None)
        assert len(record.losses) == 120


BEST = """
            if step == 50:
                torch.save(model.state_dict(), BEST)
"""


@pytest.mark.parametrize("apart", [False, True])
def test_what_two_executors_write_in_one_place_is_undone(apart: bool, make, tmp_path: Path) -> None:
    """As in a judgement; ``apart``: from working directories of their own."""
    best = tmp_path / "best.pt"
    best.write_text("mine")
    executor = make(fault=BEST.replace("BEST", repr(str(best))).strip(), put_back=True)
    workdir = tmp_path / "b" if apart else tmp_path
    workdir.mkdir(exist_ok=True)
    (workdir / "job.py").write_text((tmp_path / "job.py").read_text())
    beside = LocalExecutor(replace(executor.spec, workdir=workdir), tmp_path / "beside")
    before = sorted(tmp_path.rglob("*"))
    try:
        for order in ((executor, beside), (beside, executor)):
            first, second = order[0].run_interleaved(run(), run(), order[1])
            assert len(first.losses) == len(second.losses) == 120
            assert best.read_text() == "mine"
    finally:
        beside.close()
    left = {path for path in tmp_path.rglob("*") if path not in before}
    assert not [p for p in left if not {"run", "beside", "__pycache__"} & {*p.parts}]


def test_a_worker_is_not_stopped_while_it_holds_the_ledger(make, tmp_path: Path) -> None:
    files = "for n in range(10): open(f'{index}-{n}-{os.getpid()}.txt', 'w').close()"
    executor = make(workers=2, item=files, put_back=True)
    first, second = executor.run_interleaved(run(), run())
    assert len(first.losses) == len(second.losses) == 120
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.py", "run"]


def test_without_symbolic_links_only_the_pair_fails(make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(SessionFailed, match="cannot be linked"):
        make(put_back=True).run_interleaved(run(), run())


def test_where_the_first_cannot_start_nothing_is_left_of_the_second(make, tmp_path: Path) -> None:
    executor = make(fault="raise SystemExit(3)", put_back=True)
    with pytest.raises(SessionFailed):
        executor.run_interleaved(run(), run())
    executor.close()
    assert not [*(tmp_path / "run").rglob("written")]


RANKS = """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10_000):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.get_context("spawn").Process(target=train, args=(1,)).start()
    train(0)
"""


def test_a_rank_that_is_the_parent_of_another_does_not_stop_it(make, tmp_path: Path) -> None:
    executor = make()
    (tmp_path / "job.py").write_text(RANKS)
    assert len(executor.run_fixed(run(60, min_seconds=0.5)).losses) >= 60


@pytest.mark.slow
def test_a_window_that_is_too_short_goes_on_in_slices(make) -> None:
    asked: list[int] = []

    def more(record: Record) -> int:
        asked.append(len(record.window.times_s))
        return 180

    first, second = make().run_interleaved(run(60, more=more), run(180))
    assert len(first.losses) == len(second.losses) == 180
    assert asked == [60, 180] and not first.ended_early
    for window in (first.window, second.window):  # its load covers only its own slices
        spanned_s = (window.user_s + window.system_s) / window.session_load
        assert spanned_s < 1.5 * (sum(window.times_s) + window.away_s)


@pytest.mark.slow
def test_a_job_that_ends_sooner_leaves_the_rest_to_the_other(make) -> None:
    first, second = make(epoch=50).run_interleaved(run(40), run(400))
    assert len(first.losses) == 40 and not first.ended_early
    assert len(second.losses) == 50 and second.ended_early


@pytest.mark.slow
def test_the_failure_of_one_ends_both(make, tmp_path: Path) -> None:
    executor = make(fault="if step == 60 and os.path.exists('second'): raise ValueError('mine')")
    (tmp_path / "second").touch()
    with pytest.raises(SessionFailed, match="mine"):
        executor.run_interleaved(run(), run())
    sessions = sorted((tmp_path / "run" / "sessions").iterdir())
    assert [path.name for path in sessions] == ["0001-fixed", "0002-fixed"]
    assert json.loads((sessions[1] / "session.json").read_text())["slice_steps"] == FIRST_SLICE
    assert executor.run_fixed(run(40)).losses, "nothing is left of them"
