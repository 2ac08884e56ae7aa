"""Matched random streams: what a batch draws does not depend on which process prepares it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_tuner import Tuner

from autotune_trials.protocol.messages import Record

JOB = """
import random
import numpy, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    def __len__(self): return 80
    def __getitem__(self, i):
        x = torch.full((8,), i / 80.0)
        noise = torch.randn(8) + random.random() + float(numpy.random.normal())
        return x + noise, torch.tensor([i / 80.0])

def collate(items):
    x, y = zip(*items)
    return torch.stack(x) * (1 + torch.rand(1)), torch.stack(y)

def init(worker):
    torch.manual_seed(worker); random.seed(worker); numpy.random.seed(worker)

def main():
    torch.manual_seed(0); random.seed(0); numpy.random.seed(0); torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Augmented(), batch_size=8, shuffle=True, collate_fn=collate{more})
    while True:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def losses(tmp_path: Path):
    """``losses(knobs, more, match)``: the losses of a seeded fixed run of 30 steps (three epochs)."""
    begun: list[Tuner] = []

    def run(
        knobs: dict, more: str = "", match: bool = True, source: str = JOB, **config: object
    ) -> tuple[float | None, ...]:
        directory = tmp_path / f"job{len(begun)}"
        directory.mkdir()
        tuner = Tuner(directory)
        begun.append(tuner)
        settings = {"seed": 0, "steps": 30, "probe_steps": 0, **config}
        tuner.start(source.replace("{more}", more), "fixed", knobs, match_streams=match, **settings)
        assert type(tuner.receive()).__name__ == "Hello"
        record = tuner.receive()
        assert isinstance(record, Record), (record, tuner.log)
        assert not record.no_effect and not record.ended_early and tuner.log == ""
        tuner.end()
        return record.losses

    yield run
    for tuner in begun:
        if tuner.process is not None and tuner.process.poll() is None:
            tuner.end()


def test_losses_are_the_same_to_the_bit_with_and_without_workers(losses) -> None:
    alone = losses({})
    assert len(set(alone)) == 30
    assert losses({"num_workers": 2, "persistent_workers": True}) == alone


@pytest.mark.slow
def test_losses_are_the_same_to_the_bit_with_any_number_of_workers(losses) -> None:
    assert losses({"num_workers": 1}) == losses({"num_workers": 2, "prefetch_factor": 3})
    # without matching they differ
    assert losses({}, match=False) != losses({"num_workers": 2}, match=False)


@pytest.mark.slow
def test_a_job_with_persistent_workers_of_its_own_matches_itself_without(losses) -> None:
    own = ", num_workers=2, persistent_workers=True"
    assert (
        losses({}, own)
        == losses({"num_workers": 0}, own)
        == losses({"persistent_workers": False}, own)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ", num_workers=1, worker_init_fn=init",
        ", generator=torch.Generator().manual_seed(5)",
        ", num_workers=1, multiprocessing_context='spawn'",
    ],
)
def test_what_the_job_seeds_itself_still_runs_and_is_matched(losses, more: str) -> None:
    # until the second epoch
    found = [losses({"num_workers": workers}, more, seed=None, steps=15) for workers in (0, 2)]
    assert found[0] == found[1]


@pytest.mark.slow
def test_another_seed_is_another_augmentation(losses) -> None:
    assert losses({}, seed=1) != losses({}, seed=0)


def test_seeding_a_batch_costs_little_more_than_keeping_the_streams_and_is_left_out() -> None:
    import numpy
    import torch

    from autotune_trials.agent.dataloader.batch_seeds import EpochSeeds, SeededFetcher

    class Nothing:
        number, own_s = 1, 0.0
        seeds = EpochSeeds(torch.default_generator, 1)

        def fetch(self, indices: object) -> object:
            return indices

    def by_public_functions() -> None:
        torch_state, python_state, numpy_state = (
            torch.get_rng_state(),
            random.getstate(),
            numpy.random.get_state(),
        )
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)

    def thread_s(call: Callable[[], object]) -> float:
        began = time.thread_time()
        for _ in range(100):
            call()
        return (time.thread_time() - began) / 100

    bare = Nothing()
    fetcher, before = SeededFetcher(bare, bare, bare), torch.get_rng_state()
    rounds = [
        (thread_s(lambda: fetcher.fetch([])), thread_s(by_public_functions)) for _ in range(20)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    cost_s, public_s = map(min, zip(*rounds))
    print(f"{1e6 * cost_s:.0f} us a batch; keeping and giving back alone {1e6 * public_s:.0f} us")
    assert cost_s < 2 * public_s
    # nearly all of the cost is known, so it can be subtracted from the iteration
    assert bare.own_s / 2000 > 0.5 * cost_s
