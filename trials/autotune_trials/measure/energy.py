"""Joules, as the machine's own counters count them.

    CUDA  NVML's total of the device trained on, in mJ (Volta and later)
    CPU   RAPL: package-* and dram below /sys/class/powercap, in µJ (Intel's and AMD's); on most systems root alone may read it

Counters move every millisecond (RAPL) to every tenth of a second (NVML), so they are read now and
then, and what is read is shared out over the iterations since. Other programs' energy counts as well.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from autotune_trials.measure import nvml

# where the kernel's counters lie: a container may have the host's in another place
POWERCAP_VARIABLE = "AUTOTUNE_POWERCAP"
POWERCAP = "/sys/class/powercap"
EVERY_S = 0.05  # between two readings: each takes some 0.1 ms


class Counter:
    """One of the machine's: ``read`` gives joules since some moment, and begins again at
    ``wraps_at``.
    """

    def __init__(
        self, name: str, read: Callable[[], float], wraps_at: float = float("inf")
    ) -> None:
        self.name = name
        self._read, self._wraps_at = read, wraps_at
        self._last = read()

    def since_last(self) -> float:
        """Joules since the last time."""
        now = self._read()
        used = now - self._last
        self._last = now
        return used if used >= 0 else used + self._wraps_at


class EnergyMeter:
    """What iterations take.

    Args:
        device: the torch.device trained on, if it is a GPU; else None.
    """

    def __init__(self, device: Any) -> None:
        root = os.environ.get(POWERCAP_VARIABLE) or POWERCAP
        # []: there are none, or one of them could not be read any more
        self.counters = [*_packages(root), *([] if device is None else _gpu(device))]
        self._trained_s: list[float] = []  # of each iteration since the last reading
        self._read_s = perf_counter()

    def restart(self) -> None:
        """From here on."""
        self._joules()
        self._trained_s = []

    def iteration(self, trained_s: float, read: bool = False) -> list[float]:
        """One has ended. Joules of those that can be told now, in their order; mostly [].

        Args:
            trained_s: of what passed since the one before; the rest is none of training.
            read: now, whatever the time.
        """
        self._trained_s.append(trained_s)
        return self.rest() if read or perf_counter() - self._read_s >= EVERY_S else []

    def rest(self) -> list[float]:
        """Joules of the iterations since the last reading, as if all of the time took alike."""
        each_s, self._trained_s = self._trained_s, []
        began_s, joules = self._read_s, self._joules()
        whole_s = max(self._read_s - began_s, sum(each_s))
        return [joules * trained_s / whole_s if whole_s else 0.0 for trained_s in each_s]

    def _joules(self) -> float:
        """Since the last reading."""
        self._read_s = perf_counter()
        try:
            return sum(counter.since_last() for counter in self.counters)
        except (OSError, ValueError):  # what is left of them would tell too little
            self.counters = []
            return 0.0


def _packages(root: str) -> list[Counter]:
    found = []
    for folder in sorted(glob.glob(f"{glob.escape(root)}/*-rapl:*")):
        with suppress(OSError, ValueError):
            name = _text(folder, "name")
            if name == "dram" or name.startswith("package"):
                wraps_at = int(_text(folder, "max_energy_range_uj")) / 1e6
                found.append(Counter(name, partial(_package_j, folder), wraps_at))
    return found


def _package_j(folder: str) -> float:
    return int(_text(folder, "energy_uj")) / 1e6


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read().strip()


def _gpu(device: Any) -> list[Counter]:
    def read() -> float:
        millijoules = ctypes.c_ulonglong()
        failed = nvml.library().nvmlDeviceGetTotalEnergyConsumption(
            nvml.handle(device), ctypes.byref(millijoules)
        )
        if failed:
            raise OSError("NVML does not tell this device's energy")
        return millijoules.value / 1e3

    try:
        return [Counter("GPU", read)]
    except Exception:  # of any kind: no driver, an older one, a device without a counter
        return []
