"""A DataLoader that a thread of the job's own reads ahead, as prefetch_generator's
BackgroundGenerator does.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tiny_tuner import Tuner, block
from torch import nn

from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.controls.cuda_prefetch import CudaPrefetch
from autotune_trials.agent.controls.non_blocking import NonBlocking
from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.core.events import GivenBatch
from autotune_trials.protocol.messages import SessionConfig

JOB = """
import queue, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)

class Slow(Dataset):
    given = 0
    def __len__(self):
        return 16 * 25
    def __getitem__(self, i):
        # the third batch is asked for in the first iteration, and given long after it
        time.sleep(0.003 if 32 <= self.given < 48 else 0.0005)
        self.given += 1
        return torch.randn(64), i % 4

class Background(threading.Thread):
    def __init__(self, generator):
        super().__init__(daemon=True)
        self.queue, self.generator = queue.Queue(1), generator
        self.start()
    def run(self):
        for item in self.generator:
            self.queue.put(item)
        self.queue.put(None)
    def __iter__(self):
        return self
    def __next__(self):
        item = self.queue.get()
        if item is None:
            raise StopIteration
        return item

class DataLoaderX(DataLoader):
    def __iter__(self):
        return Background(super().__iter__())

loader = DataLoaderX(Slow(), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
seen = open("seen.txt", "w")
while True:
    for x, y in loader:
        optimizer.zero_grad()
        p = model(x)
        loss = nn.functional.cross_entropy(p, y)
        time.sleep(0.012)  # the next batch is fetched meanwhile
        loss.backward()
        print(p.dtype, torch.is_autocast_enabled("cpu"), file=seen, flush=True)
        optimizer.step()
"""


def test_autocast_is_on_in_its_own_blocks_only(tuner: Tuner) -> None:
    tuner.start(JOB)
    tuner.receive()
    for number in range(1, 5):
        on = number % 2
        knobs = {"amp_dtype": "bfloat16"} if on else {}
        (report,) = tuner.measure(block("a", 4, **knobs), number=number)
        assert not report.error
        lines = (tuner.directory / "seen.txt").read_text().splitlines()[-4:]
        dtype = "bfloat16" if on else "float32"
        assert lines == [f"torch.{dtype} False"] * 4
    assert not tuner.log


def test_what_the_thread_waits_for_is_no_part_of_the_iteration(tuner: Tuner) -> None:
    tuner.start(JOB, mode="fixed", steps=60)
    tuner.receive()
    window = tuner.receive().window
    # which thread trains is known once the first iteration has ended, for batches under way, too
    assert sum(window.data_s[2:]) == 0
    # a batch takes 8 of the 12 ms that the job sleeps in its forward pass
    assert window.phases_s["forward"] > 58 * 0.012
    # two epochs begin, and there the job waits
    assert len(window.turnovers_s) == 2 and min(window.turnovers_s) > 0.007
    assert not tuner.log


def test_a_batch_asked_for_by_another_thread_ends_autocast_after_the_region(tmp_path: Path) -> None:
    """Where the thread that reads the loader was not known when autocast was switched off."""
    agent = Agent(torch, SessionConfig("launch", str(tmp_path), ""))
    agent.install()
    try:
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        agent.live.add_entry(model)
        agent.live.device = "cpu"
        control = agent.live.get(AutocastControl)
        control.set("bfloat16")
        out = model(torch.ones(1, 8))
        control.region.ending = True
        loader: Any = SimpleNamespace(is_other=False)
        thread = threading.Thread(target=control.batch_requested, args=(loader,))
        thread.start()
        thread.join()
        assert torch.is_autocast_enabled("cpu")
        out.sum().backward()
        assert not torch.is_autocast_enabled("cpu") and control.region.dtype is None
        assert model(torch.ones(1, 8)).dtype == torch.float32
        del optimizer  # without one, nothing trains
    finally:
        agent.stop()


def test_a_batch_read_by_another_thread_is_not_copied_ahead(tmp_path: Path) -> None:
    """It is not the batch that the job moves next, and the clock is not that thread's."""
    agent = Agent(torch, SessionConfig("live", str(tmp_path), ""))
    control = agent.live.get(CudaPrefetch)
    control.set(True)
    for aside in (True, False):
        loader: Any = SimpleNamespace(training=True, read_aside=aside)
        control.batch_given(GivenBatch(loader, [torch.ones(2)], 2.0, 0.0))
        assert control.prefetch is not None and bool(control.prefetch._batch) != aside


def test_a_batch_may_be_given_while_another_is_moved(tmp_path: Path) -> None:
    control = Agent(torch, SessionConfig("live", str(tmp_path), "")).live.get(NonBlocking)
    control.set(True)

    class Given(set[int]):
        def __contains__(self, memory: object) -> bool:  # here the other thread runs
            control.batch_given(GivenBatch(None, [torch.ones(2)], 2.0, 0.0))  # type: ignore[arg-type]
            return False

    control._given += [Given(), Given()]
    tensor: Any = SimpleNamespace(
        is_pinned=lambda: True, untyped_storage=lambda: torch.ones(1).untyped_storage()
    )
    assert control.wanted_for(tensor) is None
