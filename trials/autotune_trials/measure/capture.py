"""The profiled window as a capture range for Nsight Systems or Nsight Compute around the job.

Both listen for ``cudaProfilerStart`` and ``cudaProfilerStop``. torch.profiler is off meanwhile,
since CUDA's profiling interface (CUPTI) serves one subscriber at a time.
"""

from __future__ import annotations

from typing import Any


class CaptureWindow:
    """Like :class:`~autotune_trials.measure.profiler.ProfileWindow`, but writes no trace itself.

    Raises (its methods):
        RuntimeError, AssertionError: torch was built without CUDA, or there is no driver.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        """``device``: the torch.device used for training; None: the current one."""
        self._torch, self._device = torch, device

    def start(self) -> None:
        self._torch.cuda.synchronize(self._device)
        self._torch.cuda.profiler.start()

    def step(self) -> None:
        """Do nothing: Nsight shows iterations as NVTX ranges."""

    def stop(self) -> str:
        """End the range; returns "" since there is no trace file."""
        self._torch.cuda.synchronize(self._device)
        self._torch.cuda.profiler.stop()
        return ""
