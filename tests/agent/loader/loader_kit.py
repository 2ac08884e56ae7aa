"""Datasets, listeners and a training loop for the DataLoader tests; importable by spawned workers."""

from __future__ import annotations

import random
import time

import psutil
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from autotune_trials.agent.core.events import GivenBatch, Listener


class Numbers(Dataset):
    """Item i is the number i."""

    def __init__(self, length: int = 100) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Augmented(Numbers):
    """Item i is i with noise from every generator a job may use."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([index + random.random(), index + torch.rand(()).item()]), torch.tensor(
            index
        )


class Broken(Numbers):
    """Item 13 cannot be read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13:
            raise ValueError("picture 13 is torn")
        return torch.tensor(index)


class Stream(IterableDataset):
    """Counts up; every worker delivers all items."""

    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.length


class ShardedStream(Stream):
    """Divides its items among workers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


class InfiniteDataLoader(DataLoader):
    """Like ultralytics': workers are built only once, and ``__iter__`` is overridden."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Forever:
    def __init__(self, sampler) -> None:
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class IndexDataLoader(DataLoader):
    """Like RecBole's: ``dataset`` is a list of indices while an iterator is built.

    Otherwise it is the indexed data set, which the collate function reads.
    """

    _iterating = False

    def __init__(self, data: Dataset, **kwargs) -> None:
        self._data = data
        super().__init__(list(range(len(data))), collate_fn=self.read, **kwargs)

    def read(self, indices: list[int]) -> torch.Tensor:
        assert all(type(index) is int for index in indices)
        return torch.stack([self._data[index] for index in indices])

    def __iter__(self):
        type(self)._iterating = True
        iterator = super().__iter__()
        type(self)._iterating = False
        return iterator

    def __getattribute__(self, name: str):
        if name == "dataset" and not IndexDataLoader._iterating:
            name = "_data"
        return super().__getattribute__(name)


class Heard(Listener):
    """Listens to the hooks."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, float, float, float | None]] = []
        self.ends = 0
        self.faults: list[tuple[str, str]] = []

    def batch_given(self, given: GivenBatch) -> None:
        self.batches.append((given.loader.key, given.samples, given.wait_s, given.turnover_s))

    def epoch_ended(self, loader) -> None:
        self.ends += 1

    def on_fault(self, where: str, text: str) -> None:
        self.faults.append((where, text))


def train(hooks, loader, switches=None, seen=None, limit=None):
    """Iterate with a backward and a step after each batch; ``switches``: batch number -> settings after it."""
    seen = [] if seen is None else seen
    for number, batch in enumerate(loader):
        seen.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
        hooks.choice.credit_backward()
        hooks.loop_state.iterations += 1
        if switches and number in switches:
            hooks.training.set(**switches[number])
        if limit is not None and number + 1 == limit:
            break
    return seen


def flat(batches):
    return [
        sample for batch in batches for sample in (batch if isinstance(batch, list) else [batch])
    ]


def workers() -> list[psutil.Process]:
    """Child processes, except the servers of multiprocessing, bare_runs.py and forked_jobs.py."""
    own = []
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if (
                child.status() != psutil.STATUS_ZOMBIE
                and "resource_tracker" not in command
                and not {"bare_runs", "forked_jobs"} & {*command.split()}
                and ("forkserver" not in command or "spawn_main" in command)
            ):
                own.append(child)
        except psutil.NoSuchProcess:
            pass
    return own


def wait_for_no_workers(seconds: float = 8.0) -> list[psutil.Process]:
    end = time.monotonic() + seconds
    while (left := workers()) and time.monotonic() < end:
        time.sleep(0.05)
    return left
