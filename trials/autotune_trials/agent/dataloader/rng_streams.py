"""Random numbers of a batch that do not depend on who prepares it.

Each worker process has random streams of its own, so with another ``num_workers`` an image is
augmented with other numbers, and a comparison of losses has to see through that noise. In runs that
are compared, ``__getitem__`` and ``collate_fn`` therefore draw from torch, random and numpy streams
seeded for each batch:

    state of the job's stream as the epoch begins, epoch ──▶ EpochSeeds ──▶ seed of batch n
                                                                              │
      workers       indices travel as SeededIndices, which seed the streams when the worker unpickles them
      no workers    SeededFetcher seeds around the fetch and gives the job's streams back, so that dropout goes on as ever

Reached are the three global streams. A generator that the dataset keeps for itself is not, nor are
samplers, which always run in the job's own process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.snapshots.random_streams import (
    give_streams_back,
    keep_streams,
    seed_streams,
)

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.hooks import LoaderHooks

_MIX = 0x9E3779B97F4A7C15  # the golden ratio, as in splitmix64


class EpochSeeds:
    """Seeds of the batches of one epoch."""

    def __init__(self, generator: Any, epoch: int) -> None:
        """``generator``: the torch.Generator the loader draws from; only looked at, nothing is
        drawn from it.
        """
        state = generator.get_state()
        words = ctypes.string_at(state.data_ptr(), state.numel())  # 5 KB: as a list they take 60 µs
        self._base = int.from_bytes(
            hashlib.blake2b(words, digest_size=8, salt=epoch.to_bytes(8, "little")).digest(),
            "little",
        )

    def of(self, batch: int) -> int:
        """The seed of the ``batch``-th batch, below 2**63."""
        # splitmix64: neighbouring batches share no bits
        value = (self._base + (batch + 1) * _MIX) % 2**64
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return (value ^ (value >> 31)) >> 1


def mixed_seed(seed: int, count: int) -> int:
    """A seed for the ``count``-th rebuilt source after ``seed``, the same in every run of the job."""
    return (seed + (count + 1) * _MIX) % 2**63


class SeededIndices:
    """Indices on their way to a worker, where they arrive as what the sampler gave, with the
    streams seeded.
    """

    __slots__ = ("_seed", "_indices")

    def __init__(self, seed: int, indices: Any) -> None:
        self._seed, self._indices = seed, indices

    def __reduce__(self) -> tuple[Any, ...]:
        return seeded, (self._seed, self._indices)


class SeededFetcher:
    """torch's fetcher in the job's own process, with the streams seeded while it fetches.

    ``hooks.own_s`` says how long that took, to be left out of the iteration: workers do not have
    it, and a job without workers must not look slower than it is.
    """

    def __init__(self, fetcher: Any, stream: Any, hooks: LoaderHooks) -> None:
        self._fetcher, self._stream, self._hooks = fetcher, stream, hooks

    def fetch(self, indices: Any) -> Any:
        began = perf_counter()
        before = keep_streams()
        try:
            seeded(self._stream.seeds.of(self._stream.number - 1), indices)
            self._hooks.own_s += perf_counter() - began
            return self._fetcher.fetch(indices)
        finally:
            fetched = perf_counter()
            give_streams_back(before)
            self._hooks.own_s += perf_counter() - fetched

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_fetcher" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._fetcher, name)


def seeded(seed: int, indices: Any) -> Any:
    """Seed this process' streams and return ``indices``. Never raises: a worker would die of it,
    and so would the job.
    """
    try:
        seed_streams(seed)
    except Exception:
        pass
    return indices


def workers_find_us(context: Any) -> bool:
    """Whether worker processes can unpickle :class:`SeededIndices`: forked ones can, started ones
    if the agent's door is still in the environment."""
    multiprocessing = context or sys.modules["torch"].multiprocessing
    # asked otherwise, the job could not set it any more
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    door = os.path.join(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap", "inject"
    )
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return method == "fork" or (
        "AUTOTUNE_SESSION" in os.environ and door in map(os.path.abspath, path)
    )
