"""The global random streams of a process: torch's on the CPU, ``random``'s and numpy's, each as far as it is imported."""

from __future__ import annotations

import functools
import random
import sys
from typing import Any

from autotune_trials.agent.snapshots.mersenne_twister import Stream, numpy_stream, python_stream

Kept = tuple[Any, Any, Stream | None, Any]


def seed_streams(seed: int) -> None:
    """Seed all of them."""
    # Not through torch.manual_seed and the like: a seeded session moves what the job passes to them.
    sys.modules["torch"].default_generator.manual_seed(seed)
    _unpatched(random.seed)(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _unpatched(numpy.random.seed)(seed % 2**32)


def keep_streams() -> Kept:
    """Their states now, for :func:`give_streams_back`."""
    numpy = _numpy_stream()
    return sys.modules["torch"].default_generator.get_state(), _python_stream().keep(), numpy, numpy.keep() if numpy is not None else None


def give_streams_back(kept: Kept) -> None:
    """Each as it was when ``kept`` was kept."""
    torch_state, python_state, numpy, numpy_state = kept
    sys.modules["torch"].default_generator.set_state(torch_state)
    _python_stream().give_back(python_state)
    if numpy is not None:
        numpy.give_back(numpy_state)


_python_stream = functools.cache(python_stream)


def _numpy_stream() -> Stream | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):  # not imported, or another thread is about to
        return None
    return _numpy_stream_over(numpy, getattr(numpy.random.mtrand._rand, "_bit_generator", None))


@functools.lru_cache(maxsize=1)
def _numpy_stream_over(numpy: Any, bits: Any) -> Stream:
    """Asked anew when the job gives numpy another bit generator, and when it gives it the old one back."""
    return numpy_stream(numpy)


def _unpatched(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)
