"""Peak memory of a window: on CUDA the memory reserved by the allocator, which determines whether
the job runs out of memory (under an allocator that keeps no count, such as RAPIDS' RMM, what is in
use on the device at the end of the window); on a CPU the memory of the session's processes, or with
several ranks of this one and those below it.

``device``: the CUDA device used for training, as a torch.device; None: a CPU.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from autotune_trials.measure.machine_load import resident_gib


def forget_peak(torch: Any, device: Any) -> None:
    """Reset the peak. What was given back before does not count: when it first meets a shape, cuDNN's
    benchmark briefly takes the largest workspace that fits into free memory.
    """
    if device is not None:
        with suppress(RuntimeError):  # an allocator that keeps no count
            torch.cuda.reset_peak_memory_stats(device)


def peak_gib(torch: Any, device: Any) -> float:
    """Peak since :func:`forget_peak`; on a CPU the current use, i.e. at the end of the window."""
    if device is not None:
        try:
            return float(torch.cuda.max_memory_reserved(device)) / 2**30
        except RuntimeError:  # an allocator that keeps no count
            free, total = torch.cuda.mem_get_info(device)
            return float(total - free) / 2**30
    return resident_gib(own=several_ranks(torch))  # all ranks' are added up


def several_ranks(torch: Any) -> bool:
    ranks = torch.distributed
    if ranks.is_available() and ranks.is_initialized():
        return bool(ranks.get_world_size() > 1)
    return os.environ.get("WORLD_SIZE", "1") != "1"  # the group has been left
