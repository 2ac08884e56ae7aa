"""The global random streams of a process: torch's on the CPU, ``random``'s, and numpy's if it is
imported.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def seed_streams(seed: int) -> None:
    """Seed all streams."""
    # Not through torch.manual_seed and the like: a seeded session shifts the seeds passed to them.
    sys.modules["torch"].default_generator.manual_seed(seed)
    _unpatched(random.seed)(seed)
    numpy_random = _numpy_random()
    if numpy_random is not None:
        _unpatched(numpy_random.seed)(seed % 2**32)


def keep_streams() -> tuple[Any, Any, Any]:
    """Their current states, for :func:`give_streams_back`."""
    numpy_random = _numpy_random()
    numpy_state = numpy_random.get_state(legacy=False) if numpy_random is not None else None
    return sys.modules["torch"].default_generator.get_state(), random.getstate(), numpy_state


def give_streams_back(kept: tuple[Any, Any, Any]) -> None:
    """Restore the states in ``kept``, from :func:`keep_streams`."""
    torch_state, python_state, numpy_state = kept
    sys.modules["torch"].default_generator.set_state(torch_state)
    random.setstate(python_state)
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)


def _numpy_random() -> Any | None:
    """``numpy.random``; None if numpy is not imported, or another thread is importing it."""
    return getattr(sys.modules.get("numpy"), "random", None)


def _unpatched(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)
