"""A loader queue that filled up during a stall must not make the next block look faster."""

from __future__ import annotations

import statistics

import pytest
from test_real_jobs import start

from autotune_trials.protocol.messages import Block, KnobChoice, Window

JOB = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return {length}
    def __getitem__(self, i):
        time.sleep(0.04)
        return torch.full((4,), float(i))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
number = 0
while True:
    for x in DataLoader(Slow(), batch_size=1, num_workers=2, prefetch_factor={prefetch}):
        number += 1
        if number % 15 == 0 and os.path.exists("evaluate"):
            model.eval()
            with torch.no_grad():
                model(x)
                time.sleep(1.0)
            model.train()
        optimizer.zero_grad()
        model(x).sum().backward()
        print(int(x[0, 0]), flush=True)
        time.sleep(0.014)
        if os.path.exists("stall"):
            os.remove("stall")
            time.sleep(1.0)
        optimizer.step()
"""


def measured(session, name: str, settle: int) -> Window:
    (report,) = session.run_plan([Block(name, (), 60, min_settle=settle, max_settle=settle + 200)])
    assert report.window is not None and report.settled, report
    assert set(report.window.samples) == {1.0}
    return report.window


def check_speed(window: Window) -> None:
    """Two workers that sleep for 40 ms make a batch in 20 ms at best, on a busy machine in more; from
    a full queue, the job takes one in 14 ms. What lasts a second is outside.
    """
    assert statistics.fmean(window.times_s) > 0.9 * 0.020
    assert max(window.times_s) < 1.0


def seen(session) -> list[int]:
    """Batches that the job received, by the number of their only sample."""
    return [int(line) for line in session.paths.stdout.read_text().split()]


@pytest.mark.slow
def test_a_block_after_a_stall_runs_at_the_speed_of_a_steady_one(make_session, tmp_path):
    """Batches come every 20 ms and a step takes 14 ms: while its queue is full, the job runs 30%
    too fast.
    """
    session = start(make_session, JOB.format(length=100_000, prefetch=16), hang_timeout_s=30.0)
    session.wait_hello()
    steady = measured(session, "steady", 60)
    check_speed(steady)
    (tmp_path / "stall").touch()
    after = measured(session, "after a stall", 5)
    check_speed(after)
    assert statistics.median(after.times_s) < 2 * statistics.median(steady.times_s)
    numbers = seen(session)
    jumps = [b - a for a, b in zip(numbers, numbers[1:], strict=False)]
    # later batches, in order; the ones between were discarded
    assert set(jumps) == {1, 1 + 32} and 1 <= jumps.count(33) <= 3


@pytest.mark.slow
def test_what_follows_an_evaluation_inside_a_block_runs_at_that_speed_too(make_session, tmp_path):
    session = start(make_session, JOB.format(length=100_000, prefetch=16), hang_timeout_s=30.0)
    session.wait_hello()
    steady = measured(session, "steady", 60)
    check_speed(steady)
    (tmp_path / "evaluate").touch()
    (report,) = session.run_plan([Block("evaluating", (), 30)])
    assert report.window.interruptions >= 1 and len(report.window.times_s) == 30
    check_speed(report.window)
    assert statistics.median(report.window.times_s) < 2 * statistics.median(steady.times_s)


@pytest.mark.slow
def test_a_drain_stops_at_the_end_of_the_epoch(make_session, tmp_path):
    session = start(make_session, JOB.format(length=25, prefetch=16), hang_timeout_s=30.0)
    session.wait_hello()
    measured(session, "first", 5)
    (tmp_path / "stall").touch()
    measured(session, "after a stall", 5)
    numbers = seen(session)
    starts = [i for i, n in enumerate(numbers) if n == 0]
    assert len(starts) > 2 and all(numbers[i - 1] < 25 for i in starts[1:])
    for begin, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        epoch = numbers[begin:end]
        assert epoch == sorted(set(epoch)) and epoch[-1] < 25


@pytest.mark.slow
def test_nothing_is_thrown_away_without_workers_or_with_cached_batches(make_session, tmp_path):
    session = start(make_session, JOB.format(length=100_000, prefetch=4), hang_timeout_s=30.0)
    session.wait_hello()
    blocks = [
        Block("none", (KnobChoice("num_workers", 0),), 8),
        Block("cached", (), 8, cached_batches=True),
    ]
    before = len(seen(session))
    for block in blocks:
        (tmp_path / "stall").touch()
        (report,) = session.run_plan([block])
        assert report.window is not None
    numbers = seen(session)[before:]
    assert all(b - a <= 1 for a, b in zip(numbers, numbers[1:], strict=False))
