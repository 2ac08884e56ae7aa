"""Clock and thermal limits that were active during a window: a throttled machine measures itself,
not the job.

    CPU   /sys/devices/system/cpu/cpu*/thermal_throttle/{core,package}_throttle_count, counted up by the kernel
    CUDA  NVML's clock event reasons at either edge of the window, while the device still has work

Machines that show neither (most virtual ones) are taken as not throttled. A GPU at its power cap is
told apart.
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
# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h); limits only: idle clocks and clocks the
# user set are none.
# where a large GPU works hard that is its ordinary state, and disturbs no measurement
POWER_CAP = 0x04
REASONS = {
    0x08: "a hardware slowdown",
    0x20: "its temperature (software)",
    0x40: "its temperature (hardware)",
    0x80: "the external power brake",
}


@dataclass(frozen=True)
class Limits:
    """What limits clocks, as read at one moment."""

    # counter -> times the CPU was throttled for heat since boot
    heat: Mapping[str, int] = field(default_factory=dict)
    reasons: int = 0  # NVML bits of the device trained on, 0 without one


def read(device: Any, sysfs: str = SYSFS) -> Limits:
    """The limits now. About 10 µs a counter, some 20 µs for NVML; what cannot be read is left out.

    ``device``: the CUDA device trained on, as a torch.device; None: a CPU.
    """
    return Limits(_heat(sysfs), _reasons(device) if device is not None else 0)


def in_words(start: Limits | None, end: Limits) -> str:
    """What was active from one reading to another and disturbs a measurement; "" if nothing was."""
    found = []
    grown = (
        [end.heat[name] - start.heat[name] for name in end.heat if name in start.heat]
        if start is not None
        else []
    )
    if max(grown, default=0) > 0:  # counters of one package all count the same event
        times = max(grown)
        found.append(f"the CPU was throttled for heat {times} time{'s' if times > 1 else ''}")
    reasons = end.reasons | (start.reasons if start is not None else 0)
    limits = [words for bit, words in REASONS.items() if reasons & bit]
    if limits:
        found.append("the GPU's clock was held down by " + " and ".join(limits))
    return "; ".join(found)


def power_capped(start: Limits | None, end: Limits) -> bool:
    """The GPU was at its power cap at either reading."""
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
        # called throttle reasons before NVML 12.2
        ask = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
        failed = (ask or library.nvmlDeviceGetCurrentClocksThrottleReasons)(
            nvml.handle(device), ctypes.byref(reasons)
        )
        return 0 if failed else reasons.value
    except Exception:  # no driver, or one that does not tell: taken as not throttled
        return 0
