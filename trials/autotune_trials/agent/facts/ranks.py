"""This process among those that train together."""

from __future__ import annotations

import os
from typing import Any

# (rank, world size) when the agent last asked while there was a process group: a job may destroy it
# before it ends, and ranks that the program spawns itself have no environment variables
_last_known = (0, 1)


def rank(torch: Any) -> int:
    """This process's rank in a distributed job, else 0."""
    return _place(torch)[0]


def world_size(torch: Any) -> int:
    """Number of processes that train together."""
    return _place(torch)[1]


def _place(torch: Any) -> tuple[int, int]:
    """(rank, world size)."""
    global _last_known
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        _last_known = int(distributed.get_rank()), int(distributed.get_world_size())
        return _last_known
    last_rank, last_size = _last_known
    return (
        number(os.environ.get("RANK"), last_rank),
        number(os.environ.get("WORLD_SIZE"), last_size),
    )


def backend(torch: Any) -> str:
    """The backend the ranks communicate through; "" for one process."""
    distributed = torch.distributed
    if world_size(torch) < 2 or not (distributed.is_available() and distributed.is_initialized()):
        return ""
    return str(distributed.get_backend_config())


def number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default
