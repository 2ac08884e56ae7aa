"""Two small live knobs, gc and in_order, as seen by the job itself."""

from __future__ import annotations

import pytest
from tiny_tuner import Tuner, block

from autotune_trials.protocol.messages import Record

COLLECTED = """
import gc, torch
from torch import nn
gc.set_threshold(5000, 7, 8) if "{own}" else None
held = [[i] for i in range(20_000)]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print(*gc.get_threshold(), gc.get_freeze_count(), flush=True)
"""
# Worker 0 delays its first batch; each batch contains its number.
SLOW_FIRST = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Numbered(Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        if i == 0: time.sleep(1.0)
        return torch.tensor([float(i // 4)])

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
seen = []
for x in DataLoader(Numbered(), batch_size=4, num_workers=2):
    seen.append(int(x[0]))
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
    print(*seen, flush=True) if len(seen) == 12 else None
"""
# as found by the observe stage
KEY = f"train.py:{next(i for i, line in enumerate(SLOW_FIRST.splitlines(), 1) if 'DataLoader(N' in line)}#0"


def states(out: str) -> list[tuple[int, bool]]:
    """(first threshold, whether many objects are frozen), at each change."""
    rows = [line.split() for line in out.splitlines()]
    seen = [(int(row[0]), int(row[3]) > 20_000) for row in rows]
    return [state for index, state in enumerate(seen) if index == 0 or seen[index - 1] != state]


@pytest.mark.slow
def test_gc_is_switched_between_blocks_and_given_back(tuner: Tuner) -> None:
    tuner.start(COLLECTED.format(own=""))
    hello = tuner.receive()
    assert "gc" not in hello.job.own_settings
    reports = tuner.measure(
        block("a"),
        block("b", gc="freeze"),
        block("c"),
        block("d", gc="threshold-50000"),
        block("e"),
    )
    assert [r.error for r in reports] == [""] * 5
    assert all(not r.no_effect for r in reports)
    tuner.close_connection()
    assert tuner.process is not None
    tuner.process.kill()
    seen = states(tuner.process.communicate()[0])
    own = seen[0][0]
    assert seen == [(own, False), (own, True), (own, False), (50_000, False), (own, False)]


@pytest.mark.slow
def test_the_jobs_own_thresholds_are_told(tuner: Tuner) -> None:
    tuner.start(COLLECTED.format(own="yes"))
    assert tuner.receive().job.own_settings["gc"] == "gc.set_threshold(5000, 7, 8)"


@pytest.mark.slow
def test_from_the_start_what_training_needs_is_frozen(tuner: Tuner) -> None:
    tuner.start(COLLECTED.format(own=""), "fixed", {"gc": "freeze"}, steps=8)
    hello, record = tuner.receive(), tuner.receive()
    assert "gc" not in hello.job.own_settings, "what a knob does is not the job's own doing"
    assert isinstance(record, Record) and not record.no_effect
    tuner.close_connection()
    assert tuner.process is not None
    tuner.process.kill()
    rows = [line.split() for line in tuner.process.communicate()[0].splitlines()]
    assert all(int(row[3]) > 20_000 for row in rows), "from the first step on"


def order(tuner: Tuner, **knobs: bool) -> list[int]:
    tuner.start(SLOW_FIRST, "fixed", dict(knobs), steps=40, loader_key=KEY)
    hello, record = tuner.receive(), tuner.receive()
    assert hello.job.loader.key == KEY
    assert isinstance(record, Record) and not record.no_effect
    tuner.close_connection()
    assert tuner.process is not None
    tuner.process.kill()
    return [int(word) for word in tuner.process.communicate()[0].split()]


@pytest.mark.slow
def test_batches_wait_for_their_turn(tuner: Tuner) -> None:
    assert order(tuner) == list(range(12))


@pytest.mark.slow
def test_out_of_order_nobody_waits_for_the_slow_worker(tuner: Tuner) -> None:
    seen = order(tuner, in_order=False)
    assert seen[0] == 1, "the first batch that is ready, not the first of the sampler"
    assert len(set(seen)) == 12
