"""Clock and thermal limits active during a window: on a throttled machine the times say nothing
about the job.

    CPU   /sys/devices/system/cpu/cpu*/thermal_throttle/{core,package}_throttle_count, counted up by the kernel
    CUDA  NVML's clock event reasons at both edges of the window, while the device still has work

Machines that report neither (most virtual ones) count as not throttled. A GPU at its power cap is
reported separately.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune_trials.measure import nvml

SYSFS = "/sys/devices/system/cpu"
# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h). Only limits: idle clocks and clocks set
# by the user are left out.
# the normal state of a large GPU under load, no disturbance of a measurement
POWER_CAP = 0x04
REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "the external power brake",
}


@dataclass(frozen=True)
class Limits:
    """The clock limits read at one moment."""

    # counter -> times the CPU was throttled for heat since boot
    heat: Mapping[str, int] = field(default_factory=dict)
    reasons: int = 0  # NVML bits of the training device, 0 without one


def read(device: Any, sysfs: str = SYSFS) -> Limits:
    """Read the limits now. About 10 µs per counter, 20 µs for NVML; unreadable ones are left out.

    ``device``: the CUDA device used for training, as a torch.device; None: a CPU.
    """
    return Limits(_heat(sysfs), _reasons(device) if device is not None else 0)


def in_words(start: Limits | None, end: Limits) -> str:
    """Text on the limits between two readings that disturb a measurement; "" if none."""
    found = []
    grown = (
        [end.heat[name] - start.heat[name] for name in end.heat if name in start.heat]
        if start is not None
        else []
    )
    if max(grown, default=0) > 0:  # all counters of a package count the same event
        times = max(grown)
        found.append(f"the CPU was thermally throttled {times} time{'s' if times > 1 else ''}")
    reasons = end.reasons | (start.reasons if start is not None else 0)
    limits = [words for bit, words in REASONS.items() if reasons & bit]
    if limits:
        found.append("the GPU's clock was reduced by " + " and ".join(limits))
    return "; ".join(found)


def power_capped(start: Limits | None, end: Limits) -> bool:
    """Whether the GPU was at its power cap at either reading."""
    return bool((end.reasons | (start.reasons if start is not None else 0)) & POWER_CAP)


def _heat(sysfs: str) -> dict[str, int]:
    counters = {}
    for path in glob.glob(f"{glob.escape(sysfs)}/cpu[0-9]*/thermal_throttle/*_throttle_count"):
        try:
            with open(path, "rb") as file:
                counters[os.path.relpath(path, sysfs)] = int(file.read())
        except (OSError, ValueError):
            continue
    return counters


def _reasons(device: Any) -> int:
    try:
        reasons = ctypes.c_ulonglong()
        library = nvml.library()
        # named "throttle reasons" before NVML 12.2
        ask = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
        failed = (ask or library.nvmlDeviceGetCurrentClocksThrottleReasons)(
            nvml.handle(device), ctypes.byref(reasons)
        )
        return 0 if failed else reasons.value
    except Exception:  # no driver, or not supported by it: counts as not throttled
        return 0
