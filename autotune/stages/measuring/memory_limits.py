"""The memory that a configuration may take: ``constraints`` of the job file."""

from __future__ import annotations

from autotune.job.spec import Constraints
from autotune_spaces.facts import Machine
from autotune_trials.protocol.messages import Window

# share of the device's memory: the allocator's reservation for the same job varies by a few
# segments
SEGMENTS_SHARE = 0.01


def beyond_limits(
    limits: Constraints, machine: Machine, device: str, window: Window, own_gib: float
) -> str:
    """How the memory of ``window`` exceeds ``limits``; "": it does not.

    Args:
        device: that the job trains on, "cpu" or "cuda".
        own_gib: device memory of the unchanged job, which is always allowed.
    """
    if device == "cuda" and machine.device_memory_gib:
        share, own = (gib / machine.device_memory_gib for gib in (window.peak_memory_gib, own_gib))
        if share > max(limits.device_memory_fraction, own + SEGMENTS_SHARE):
            return (
                f"uses {share:.0%} of the device's memory, more than device_memory_fraction allows"
            )
    elif limits.host_memory_gib is not None and window.peak_memory_gib > limits.host_memory_gib:
        return f"uses {window.peak_memory_gib:.1f} GiB, more than host_memory_gib allows"
    return ""
