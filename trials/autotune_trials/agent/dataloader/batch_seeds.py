"""Makes a batch's random numbers independent of the process that prepares it.

Each worker process has random streams of its own, so a different ``num_workers`` augments an image
with different numbers, which adds noise to a comparison of losses. In runs that are compared,
``__getitem__`` and ``collate_fn`` therefore draw from torch, random and numpy streams seeded for
each batch:

    state of the job's stream as the epoch begins, epoch ──▶ EpochSeeds ──▶ seed of batch n
                                                                              │
      workers       indices travel as SeededIndices, which seed the streams when the worker unpickles them
      no workers    SeededFetcher seeds around the fetch and restores the job's streams, so that dropout is unaffected

This covers the three global streams only. It does not reach a generator that the dataset keeps for
itself, nor samplers, which always run in the job's own process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.dataloader.random_streams import (
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
        """``generator``: the torch.Generator the loader draws from; only read, nothing is drawn
        from it.
        """
        state = generator.get_state()
        # 5 KB; converting to a list takes 60 µs
        words = ctypes.string_at(state.data_ptr(), state.numel())
        self._base = int.from_bytes(
            hashlib.blake2b(words, digest_size=8, salt=epoch.to_bytes(8, "little")).digest(),
            "little",
        )

    def of(self, batch: int) -> int:
        """The seed of batch number ``batch``, below 2**63."""
        # splitmix64: neighboring batches share no bits
        value = (self._base + (batch + 1) * _MIX) % 2**64
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return (value ^ (value >> 31)) >> 1


def mixed_seed(seed: int, count: int) -> int:
    """A seed for the ``count``-th rebuilt source after ``seed``; the same in every run."""
    return (seed + (count + 1) * _MIX) % 2**63


class SeededIndices:
    """Indices on their way to a worker: unpickling seeds the streams and yields the sampler's
    indices.
    """

    __slots__ = ("_seed", "_indices")

    def __init__(self, seed: int, indices: Any) -> None:
        self._seed, self._indices = seed, indices

    def __reduce__(self) -> tuple[Any, ...]:
        return seeded, (self._seed, self._indices)


class SeededFetcher:
    """torch's fetcher in the job's own process, with the streams seeded while it fetches.

    ``hooks.own_s`` accumulates the seeding time, which is left out of the iteration: workers do not
    pay it in the training process, and a job without workers must not look slower than it is.
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
    """Seed this process's streams and return ``indices``. Never raises: that would kill the worker,
    and with it the job.
    """
    try:
        seed_streams(seed)
    except Exception:
        log.write_exception("seeds of a batch")
    return indices


def start_method(context: Any) -> str:
    """How the workers of a loader with this ``multiprocessing_context`` start."""
    multiprocessing = context or sys.modules["torch"].multiprocessing
    # allow_none: otherwise the call fixes the method, and the job could no longer set it
    method = multiprocessing.get_start_method(allow_none=True)
    return str(method or multiprocessing.get_all_start_methods()[0])


def workers_find_us(context: Any) -> bool:
    """Whether worker processes can unpickle :class:`SeededIndices`: forked workers always can,
    others if the environment still makes them import the agent.
    """
    door = os.path.join(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap", "inject"
    )
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return start_method(context) == "fork" or (
        "AUTOTUNE_SESSION" in os.environ and door in map(os.path.abspath, path)
    )
