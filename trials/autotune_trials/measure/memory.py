"""Peak memory of a window: on CUDA what the allocator has reserved, on a CPU what the session's processes hold."""

from __future__ import annotations

from typing import Any

from autotune_trials.measure.machine_load import resident_gib


class MemoryMeter:
    """Between :meth:`start` and :meth:`peak_gib`. Reserved device memory is what decides over out-of-memory."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._cuda = torch, device == "cuda"

    def start(self) -> None:
        """Forget earlier peaks. On CUDA this returns cached blocks of earlier configurations to the device."""
        if self._cuda:
            self._torch.cuda.empty_cache()
            self._torch.cuda.reset_peak_memory_stats()

    def peak_gib(self) -> float:
        """The peak since :meth:`start`, in GiB. On a CPU: now, which is at the end of the window."""
        if self._cuda:
            return float(self._torch.cuda.max_memory_reserved()) / 2**30
        return resident_gib()
