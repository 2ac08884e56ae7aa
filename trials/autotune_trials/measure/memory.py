"""Peak memory of a window: on CUDA what the allocator has reserved, on a CPU what the session's
processes hold.
"""

from __future__ import annotations

from typing import Any

from autotune_trials.measure.machine_load import resident_gib


class MemoryMeter:
    """Between :meth:`start` and :meth:`peak_gib`. Reserved device memory is what decides over
    out-of-memory.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        """``device``: the CUDA device trained on, as a torch.device; None: a CPU."""
        self._torch, self._device = torch, device

    def start(self) -> None:
        """Forget earlier peaks. On CUDA this returns cached blocks of earlier configurations to the
        device.
        """
        if self._device is not None:
            self._torch.cuda.empty_cache()
            self._torch.cuda.reset_peak_memory_stats(self._device)

    def peak_gib(self) -> float:
        """The peak since :meth:`start`, in GiB. On a CPU: now, which is at the end of the window."""
        if self._device is not None:
            return float(self._torch.cuda.max_memory_reserved(self._device)) / 2**30
        return resident_gib()
