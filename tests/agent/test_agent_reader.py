"""The running job shows how the reader spends its time, whichever process prepares the batches."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest
from tiers import slow
from tiny_tuner import Tuner, block

from autotune_trials.agent.dataloader.reader_meter import ReaderMeter
from autotune_trials.agent.dataloader.worker_ends import ended_or_too_many
from autotune_trials.diagnosis.classify import WORKERS_TOO_MANY
from autotune_trials.protocol.messages import BlockReport, Hello, Window

JOB = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)
class Items(Dataset):
    def __len__(self):
        return LENGTH
    def __getitem__(self, i):
        ITEM
        return torch.full((8,), float(i % 7)), i % 3
def computed(seconds):
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        sum(range(100))
loader = DataLoader(Items(), batch_size=16, shuffle=True, num_workers=WORKERS)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
WAITS, COMPUTES = "time.sleep(0.003)", "computed(0.001)"


def source(item: str, workers: int = 0, length: int = 1600) -> str:
    return JOB.replace("ITEM", item).replace("WORKERS", str(workers)).replace("LENGTH", str(length))


def told(tuner: Tuner, text: str, *blocks: object) -> tuple[Hello, list[BlockReport]]:
    tuner.start(text)
    hello = tuner.receive()
    reports = tuner.measure(*blocks)
    assert tuner.log == "" and not any(r.error for r in reports), tuner.log
    return hello, reports


def busy(window: Window) -> float:
    assert window.reader_fetches >= 4
    return window.reader_cpu_s / (window.reader_wall_s - window.reader_queued_s)


@pytest.mark.parametrize("workers", [slow(0), 2])
def test_a_reader_that_waits_is_told_from_one_that_computes(tuner: Tuner, workers: int) -> None:
    _, [waiting] = told(tuner, source(WAITS, workers), block("b", 8))
    assert waiting.window is not None
    assert busy(waiting.window) < 0.3
    # per batch, whichever process fetched it
    assert waiting.window.reader_wall_s / waiting.window.reader_fetches >= 16 * 0.003


@pytest.mark.parametrize("workers", [0, slow(2)])
def test_a_reader_that_computes_does_so_on_a_machine_without_a_free_cpu_as_well(
    tuner: Tuner, workers: int
) -> None:
    _, [computing] = told(tuner, source(COMPUTES, workers), block("b", 8))
    assert computing.window is not None
    assert busy(computing.window) > 0.8


def test_threads_that_fetch_leave_no_open_files() -> None:
    """As those of a prefetcher that starts one for every epoch."""
    meter, before = ReaderMeter(), os.listdir("/proc/self/fd")
    for _ in range(8):
        fetcher = SimpleNamespace(fetch=lambda indices: time.sleep(0.001))
        meter.attach(fetcher, None)
        thread = threading.Thread(target=fetcher.fetch, args=([0],))
        thread.start()
        thread.join()
    assert meter.spent().fetches == 8
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.mark.slow
def test_workers_that_a_knob_starts_are_looked_at_and_the_fetches_before_are_left_out(
    tuner: Tuner,
) -> None:
    _, reports = told(
        tuner, source(WAITS), block("0", 4), block("2", 8, num_workers=2), block("0 again", 4)
    )
    shares = [busy(r.window) for r in reports if r.window is not None]
    assert len(shares) == 3 and max(shares) < 0.3
    assert all(r.window is not None and r.window.reader_fetches <= 30 for r in reports)


@pytest.mark.slow
def test_what_was_put_in_to_look_at_the_reader_is_taken_out_when_the_agent_goes(
    tuner: Tuner,
) -> None:
    text = source("pass").replace(
        "while True:",
        "from torch.utils.data import"
        " _DatasetKind\nprint(_DatasetKind.create_fetcher.__module__)\nfor _ in range(2):",
    )
    tuner.start(text + "print(_DatasetKind.create_fetcher.__code__.co_filename)\n")
    tuner.receive()
    tuner.close_connection()  # the tuner disconnects
    code, out, err = tuner.finish()
    assert code == 0, err
    assert out.splitlines()[-1].endswith("dataloader.py")


# ----------------------------------------------------------- more workers than the process may have

FEW_FILES = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))\n"


def limited(files: int, workers: int = 0) -> str:
    return FEW_FILES.replace("FILES", str(files)) + source("time.sleep(0.001)", workers)


@pytest.mark.parametrize("own", [0, slow(2)])
@pytest.mark.parametrize("files", [80, slow(200)])
def test_workers_that_cannot_be_started_or_fed_cost_their_block_and_the_job_goes_on(
    tuner: Tuner, own: int, files: int
) -> None:
    """With 80 files, 40 workers cannot be started; with 200 they can, but then none is left for
    their batches.
    """
    tuner.start(limited(files, own))
    hello = tuner.receive()
    assert (hello.job.process.most_files, hello.job.process.open_files > 3) == (files, True)
    before, failed, after = tuner.measure(
        block("own", 6), block("40", 6, num_workers=40), block("own again", 6)
    )
    assert before.error == "" and before.window is not None
    assert failed.window is None and WORKERS_TOO_MANY.search(failed.error), failed.error
    assert after.error == "" and len(after.window.times_s) == 6, after.error
    assert after.notes["in_force"]["loader"]["num_workers"] == own
    assert tuner.process is not None and len(children(tuner.process.pid)) == own, (
        "none of the 40 is left"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Pin memory thread exited unexpectedly",
        "unable to allocate shared memory(shm) for file </torch_7_1>: Success (0)",
    ],
)
def test_what_torch_says_of_too_many_workers_is_known(text: str) -> None:
    assert ended_or_too_many(RuntimeError(text))
    assert WORKERS_TOO_MANY.search(
        f"loader settings num_workers=40, in_order=1: RuntimeError: {text}"
    )


LATE = """
import threading
from multiprocessing import queues
as_it_is = queues.Queue.close
def close(self):
    if self._close is not None:
        self._close = threading.Timer(0.3, self._close).start
    as_it_is(self)
queues.Queue.close = close
"""


@pytest.mark.slow
def test_the_descriptors_of_ended_workers_are_waited_for_before_others_are_started(
    tuner: Tuner,
) -> None:
    """A queue is closed by its own thread, which may be late on a busy machine."""
    tuner.start(LATE + limited(200, 2))
    tuner.receive()
    reports = tuner.measure(block("40", 6, num_workers=40), block("own again", 6))
    assert [bool(r.error) for r in reports] == [True, False], tuner.log


def children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return file.read().split()
