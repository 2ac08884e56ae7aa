"""Peak memory of a window: on CUDA what the allocator has reserved, which is what decides over
out-of-memory; on a CPU what the session's processes hold.

``device``: the CUDA device trained on, as a torch.device; None: a CPU.
"""

from __future__ import annotations

from typing import Any

from autotune_trials.measure.machine_load import resident_gib


def forget_peak(torch: Any, device: Any) -> None:
    """Begin anew. On CUDA this returns cached blocks of earlier configurations to the device."""
    if device is not None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(torch: Any, device: Any) -> float:
    """Since :func:`forget_peak`. On a CPU: now, which is at the end of the window."""
    if device is not None:
        return float(torch.cuda.max_memory_reserved(device)) / 2**30
    return resident_gib()
