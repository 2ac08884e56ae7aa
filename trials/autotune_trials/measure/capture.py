"""The profiled window as a capture range for a tool around the job: Nsight Systems or Nsight
Compute.

Both listen for ``cudaProfilerStart`` and ``cudaProfilerStop``. torch.profiler stays out meanwhile:
CUDA's profiling interface (CUPTI) serves one subscriber at a time.
"""

from __future__ import annotations

from typing import Any


class CaptureWindow:
    """Has the interface of :class:`~autotune_trials.measure.profiler.ProfileWindow`, and no trace
    of its own.

    Raises (its methods):
        RuntimeError, AssertionError: torch was built without CUDA, or there is no driver.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        """``device``: the one trained on, as a torch.device; None: the current one."""
        self._torch, self._device = torch, device

    def start(self) -> None:
        self._torch.cuda.synchronize(self._device)
        self._torch.cuda.profiler.start()

    def step(self) -> None:
        """Iterations are NVTX ranges there."""

    def stop(self) -> str:
        """End the range; there is no trace of ours, hence no path."""
        self._torch.cuda.synchronize(self._device)
        self._torch.cuda.profiler.stop()
        return ""
