"""A job that reads its DataLoader through itertools.cycle, which keeps every batch of the first epoch
and repeats them.
"""

from __future__ import annotations

import pytest
from tiny_tuner import CNN, Tuner, block

from autotune_spaces.base import NotApplicable
from autotune_spaces.knobs import create

JOB = (
    CNN
    + """
from itertools import cycle
fetched = 0
def collate(samples):
    global fetched
    fetched += len(samples)
    return torch.utils.data.default_collate(samples)
batches = cycle(DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate))
seen = open("seen.txt", "w")
while True:
    x, y = next(batches)
    optimizer.zero_grad()
    p = model(x)
    criterion(p, y).backward()
    print(fetched, p.dtype, file=seen, flush=True)
    optimizer.step()
"""
)


def test_its_epoch_is_not_stretched_and_its_loader_left_alone(tuner: Tuner) -> None:
    tuner.start(JOB)
    hello = tuner.receive()
    assert hello.job.sample_unit == "iterations"
    for name in ("num_workers", "batch_size", "in_order"):
        with pytest.raises(NotApplicable, match="while True: for batch in loader"):
            create(name, {}).domain(hello.machine, hello.job)
    (report,) = tuner.measure(block("a", 30))
    assert set(report.window.samples) == {1.0}
    (report,) = tuner.measure(block("ceiling", 4, _cached_batches=True), number=2)
    assert "keeps every batch" in report.error
    lines = (tuner.directory / "seen.txt").read_text().splitlines()
    assert lines[-1] == "256 torch.float32", "the epoch has ended, and nothing was read since"


def test_autocast_ends_although_no_batch_is_fetched_any_more(tuner: Tuner) -> None:
    tuner.start(JOB)
    tuner.receive()
    tuner.measure(block("past the epoch", 20))
    for number, dtype in ((2, "bfloat16"), (3, "float32")):
        knobs = {"amp_dtype": dtype} if number == 2 else {}
        tuner.measure(block("a", 4, **knobs), number=number)
        lines = (tuner.directory / "seen.txt").read_text().splitlines()[-4:]
        assert lines == [f"256 torch.{dtype}"] * 4
    assert not tuner.log
