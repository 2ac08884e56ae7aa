"""Energy in joules, from the machine's own counters.

    CUDA  NVML's total for the device used for training, in mJ (Volta and later)
    CPU   RAPL: package-* and dram below /sys/class/powercap, in µJ (Intel and AMD); on most systems only root may read it

Counters are updated every millisecond (RAPL) to every 0.1 s (NVML), so they are read occasionally
and the energy is shared among the iterations since. On a GPU, which works on while the CPU is
iterations ahead, it is shared at the end of a window (agent/core/window_recorder.py), when the device's times
are known: each iteration gets the mean power of its stretch of the window. Energy of other programs
is included.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from autotune_trials.measure import nvml

# directory of the kernel's counters: a container may have the host's mounted elsewhere
POWERCAP_VARIABLE = "AUTOTUNE_POWERCAP"
POWERCAP = "/sys/class/powercap"
EVERY_S = 0.05  # between two readings; each takes about 0.1 ms
# of a GPU's window: long against NVML's updates, short against a recompile or an epoch's end, while
# the device idles
STRETCH_S = 1.0


class Counter:
    """One energy counter: ``read`` returns accumulated joules and wraps to 0 at ``wraps_at``."""

    def __init__(
        self, name: str, read: Callable[[], float], wraps_at: float = float("inf")
    ) -> None:
        self.name = name
        self._read, self._wraps_at = read, wraps_at
        self._last = read()

    def since_last(self) -> float:
        """Joules since the last call."""
        now = self._read()
        used = now - self._last
        self._last = now
        return used if used >= 0 else used + self._wraps_at


class EnergyMeter:
    """Measures the energy of iterations.

    Args:
        device: the torch.device used for training if it is a GPU, else None.
        rank: of this process in the job.
    """

    def __init__(self, device: Any, rank: int = 0) -> None:
        root = os.environ.get(POWERCAP_VARIABLE) or POWERCAP
        # of several ranks with a GPU each, the machine's first one counts the packages; spawned
        # ones have no LOCAL_RANK
        counts_packages = device is None or os.environ.get("LOCAL_RANK", str(rank)) == "0"
        gpu = [] if device is None else _gpu(device)
        packages = _packages(root) if counts_packages else []
        # []: there are none, one of them became unreadable, or the GPU has none (a MIG slice):
        # what the packages alone use is not what the job uses
        self.counters = [*packages, *gpu] if gpu or device is None else []
        self._trained_s: list[float] = []  # training time of each iteration since the last reading
        # (iterations up to its end, seconds, joules) of each stretch
        self._stretches: list[tuple[int, float, float]] = []
        self._read_s = perf_counter()

    def restart(self) -> None:
        self._trained_s = []
        self._stretches = []
        self._joules()

    def iteration(self, trained_s: float, read: bool = False) -> list[float]:
        """Add an iteration; return joules of the iterations now known, in order; mostly [].

        Args:
            trained_s: training time since the previous iteration, without other work in between.
            read: read the counters now, even if the last reading is recent.
        """
        self._trained_s.append(trained_s)
        return self.rest() if read or perf_counter() - self._read_s >= EVERY_S else []

    def rest(self) -> list[float]:
        """Joules of the iterations since the last reading, assuming constant power."""
        each_s, self._trained_s = self._trained_s, []
        began_s, joules = self._read_s, self._joules()
        whole_s = max(self._read_s - began_s, sum(each_s))
        return [joules * trained_s / whole_s if whole_s else 0.0 for trained_s in each_s]

    def go_by(self, iterations: int) -> None:
        """The CPU is done with so many iterations: end the stretch if it is long enough."""
        if perf_counter() - self._read_s >= STRETCH_S:
            self.pause(iterations)

    def pause(self, iterations: int) -> None:
        """End the stretch at so many iterations; :meth:`resume` discards what is used meanwhile."""
        began_s, joules = self._read_s, self._joules()
        seconds = self._read_s - began_s
        if self._stretches and seconds < STRETCH_S:  # too short for NVML: part of the last one
            _, before_s, before_j = self._stretches.pop()
            seconds, joules = before_s + seconds, before_j + joules
        self._stretches.append((iterations, seconds, joules))

    def resume(self) -> None:
        self._joules()

    def shared(self, times_s: Sequence[float]) -> list[float]:
        """Joules of iterations that took ``times_s``, assuming constant power in each stretch."""
        self.pause(len(times_s))
        found: list[float] = []
        for end, seconds, joules in self._stretches:
            watts = joules / seconds if seconds else 0.0
            found += [watts * s for s in times_s[len(found) : end]]
        return found

    def _joules(self) -> float:
        """Joules of all counters since the last reading."""
        self._read_s = perf_counter()
        try:
            return sum(counter.since_last() for counter in self.counters)
        except (OSError, ValueError):  # the sum of the remaining counters would be too low
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
            raise OSError("NVML does not report this device's energy")
        return millijoules.value / 1e3

    try:
        return [Counter("GPU", read)]
    except Exception:  # no driver, an old driver, or a device without a counter
        return []
