"""With no setting changed, the job gets bit for bit the same batches as from torch alone."""

from __future__ import annotations

import random

import pytest
import torch
from loader_kit import Augmented, InfiniteDataLoader, Numbers, ShardedStream, SizedStream
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

pytestmark = pytest.mark.usefixtures("no_workers_left")


class EagerSampler(Sampler):
    """Draws when the iteration starts, not at the first item: torch's worker iterator starts it
    twice.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self):
        return iter(torch.randperm(self.length).tolist())

    def __len__(self) -> int:
        return self.length


class EagerBatches(EagerSampler):
    def __iter__(self):
        return iter(torch.randperm(self.length).reshape(-1, 4).tolist())


LOADERS = {
    "shuffled": lambda n: DataLoader(Augmented(30), batch_size=4, shuffle=True, num_workers=n),
    "drop_last": lambda n: DataLoader(
        Augmented(30), batch_size=4, shuffle=True, num_workers=n, drop_last=True
    ),
    "persistent": lambda n: DataLoader(
        Augmented(30), batch_size=4, shuffle=True, num_workers=n, persistent_workers=n > 0
    ),
    "generator": lambda n: DataLoader(
        Augmented(30),
        batch_size=4,
        shuffle=True,
        num_workers=n,
        generator=torch.Generator().manual_seed(5),
    ),
    "weighted": lambda n: DataLoader(
        Augmented(30),
        batch_size=4,
        num_workers=n,
        sampler=WeightedRandomSampler(torch.arange(1.0, 31), 26),
    ),
    "replacement": lambda n: DataLoader(
        Augmented(30),
        batch_size=4,
        num_workers=n,
        sampler=RandomSampler(range(30), replacement=True, num_samples=70),
    ),
    "distributed": lambda n: DataLoader(
        Augmented(30), batch_size=4, num_workers=n, sampler=DistributedSampler(range(30), 2, 1)
    ),
    "eager sampler": lambda n: DataLoader(
        Augmented(28), batch_size=4, num_workers=n, sampler=EagerSampler(28)
    ),
    "eager batches": lambda n: DataLoader(
        Augmented(28), num_workers=n, batch_sampler=EagerBatches(28)
    ),
    "eager no batches": lambda n: DataLoader(
        Augmented(28), batch_size=None, num_workers=n, sampler=EagerSampler(28)
    ),
    "batch_sampler": lambda n: DataLoader(
        Augmented(30), num_workers=n, batch_sampler=BatchSampler(RandomSampler(range(30)), 4, False)
    ),
    "sampler of batches": lambda n: DataLoader(
        Augmented(30),
        batch_size=None,
        num_workers=n,
        collate_fn=list,
        sampler=RandomSampler(range(30)),
    ),
    "infinite": lambda n: InfiniteDataLoader(
        Augmented(30), batch_size=4, shuffle=True, num_workers=n
    ),
    "stream": lambda n: DataLoader(SizedStream(), batch_size=7, num_workers=n),
    "sharded stream": lambda n: DataLoader(
        ShardedStream(), batch_size=7, num_workers=n, drop_last=True
    ),
    "stream, no batches": lambda n: DataLoader(ShardedStream(), batch_size=None, num_workers=n),
}


def seen(loader: DataLoader, epochs: int = 3) -> list:
    """What a job sees: batches, their number, and its generators' states after each epoch."""
    out: list = []
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            out.append(batch)
            if epoch == 1 and step == 2:
                break  # leave an epoch in the middle
        out.append(torch.rand(2))
        out.append(random.random())
    return out


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def run(make, workers: int) -> list:
    torch.manual_seed(7)
    random.seed(7)
    return seen(make(workers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_untouched_loader_is_bit_identical(hook, name, workers):
    bare = run(LOADERS[name], workers)
    hooks, heard = hook()
    hooked = run(LOADERS[name], workers)
    assert same(bare, hooked)
    assert len(heard.batches) > 5 and not heard.faults


@pytest.mark.parametrize("name", ["shuffled", "persistent", "eager batches", "weighted"])
def test_credited_and_reverted_loader_is_bit_identical(hook, name):
    """Settings that are made and reverted before the next batch leave no trace."""
    bare = run(LOADERS[name], 2)
    hooks, _ = hook()
    torch.manual_seed(7)
    random.seed(7)
    loader = LOADERS[name](2)
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.control.set(num_workers=0)
    hooks.control.set(num_workers=None)
    assert same(bare, seen(loader))


@pytest.mark.parametrize(
    "change", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
)
@pytest.mark.parametrize("name", ["shuffled", "weighted", "eager batches", "generator"])
def test_more_workers_keep_the_order_of_every_epoch(hook, name, change):
    """Only the noise differs, as with torch alone; the order and the job's own random numbers stay
    the same.
    """

    def order(loader):
        return [
            b if isinstance(b, (float, torch.Tensor)) and not isinstance(b, tuple) else b[1]
            for b in seen(loader)
        ]

    kinds = {
        "shuffled": lambda: DataLoader(Numbers(30), batch_size=4, shuffle=True),
        "generator": lambda: DataLoader(
            Numbers(30), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
        ),
        "weighted": lambda: DataLoader(
            Numbers(30), batch_size=4, sampler=WeightedRandomSampler(torch.arange(1.0, 31), 26)
        ),
        "eager batches": lambda: DataLoader(Numbers(28), batch_sampler=EagerBatches(28)),
    }
    torch.manual_seed(7)
    random.seed(7)
    bare = order(kinds[name]())
    hooks, heard = hook(mode="fixed")
    torch.manual_seed(7)
    random.seed(7)
    loader = kinds[name]()
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.control.set(**change)
    assert same(bare, order(loader))
    assert not heard.faults


def test_one_loader_read_by_two_iterators_at_once(hook):
    def pairs():
        torch.manual_seed(1)
        loader = DataLoader(Augmented(20), batch_size=3, shuffle=True, num_workers=1)
        return list(zip(loader, loader, strict=True))

    bare = pairs()
    hook()
    assert same(bare, pairs())


def test_iterator_behaves_as_torchs_own(hook):
    hook()
    loader = DataLoader(Numbers(20), batch_size=6, num_workers=2)
    iterator = iter(loader)
    assert isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter)
    assert iter(iterator) is iterator and len(iterator) == len(loader) == 4
    assert next(iterator).tolist() == [0, 1, 2, 3, 4, 5]
    assert iterator._num_workers == 2 and len(iterator._workers) == 2 and iterator._num_yielded == 1
    assert not hasattr(iter(DataLoader(Numbers(4))), "_workers")
    rest = list(iterator)
    assert len(rest) == 3
    assert next(iterator, "ended") == "ended"
