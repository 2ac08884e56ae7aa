"""Clock and thermal limits that were active during a window: a throttled machine measures itself, not the job.

    CPU   /sys/devices/system/cpu/cpu*/thermal_throttle/{core,package}_throttle_count, counted up by the kernel
    CUDA  NVML's clock event reasons at either edge of the window, while the device still has work

Machines that show neither (most virtual ones) are taken as not throttled.
"""

from __future__ import annotations

import glob
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SYSFS = "/sys/devices/system/cpu"
# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h); limits only: idle clocks and clocks the user set are none.
REASONS = {
    0x04: "its power cap",
    0x08: "a hardware slowdown",
    0x20: "its temperature (software)",
    0x40: "its temperature (hardware)",
    0x80: "the external power brake",
}


@dataclass(frozen=True)
class Limits:
    """What limits clocks, as read at one moment."""

    heat: Mapping[str, int] = field(default_factory=dict)  # counter -> times the CPU was throttled for heat since boot
    reasons: int = 0  # NVML bits of this process' device, 0 without one


def read(cuda: bool, sysfs: str = SYSFS) -> Limits:
    """The limits now. About 10 µs a counter, some 20 µs for NVML; what cannot be read is left out."""
    return Limits(_heat(sysfs), _reasons() if cuda else 0)


def in_words(start: Limits | None, end: Limits) -> str:
    """What was active from one reading to another; "" if nothing was."""
    found = []
    grown = [end.heat[name] - start.heat[name] for name in end.heat if name in start.heat] if start is not None else []
    if max(grown, default=0) > 0:  # counters of one package all count the same event
        times = max(grown)
        found.append(f"the CPU was throttled for heat {times} time{'s' if times > 1 else ''}")
    reasons = end.reasons | (start.reasons if start is not None else 0)
    limits = [words for bit, words in REASONS.items() if reasons & bit]
    if limits:
        found.append("the GPU's clock was held down by " + " and ".join(limits))
    return "; ".join(found)


def _heat(sysfs: str) -> dict[str, int]:
    counters = {}
    for path in glob.glob(f"{glob.escape(sysfs)}/cpu[0-9]*/thermal_throttle/*_throttle_count"):
        try:
            with open(path, "rb") as file:
                counters[os.path.relpath(path, sysfs)] = int(file.read())
        except (OSError, ValueError):
            continue
    return counters


def _reasons() -> int:
    try:
        nvml, device = _device()
        if device is None:
            return 0
        ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # called throttle reasons before NVML 12.2
        return int((ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(device))
    except Exception:
        return 0


_known: list[Any] = []  # (pynvml, handle of this process' device), once looked for


def _device() -> tuple[Any, Any]:
    if not _known:
        _known.append((None, None))
        nvml, torch = importlib.import_module("pynvml"), sys.modules["torch"]
        nvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        _known[0] = (nvml, nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"))
    found: tuple[Any, Any] = _known[0]
    return found
