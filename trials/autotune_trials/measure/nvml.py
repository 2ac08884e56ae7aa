"""NVML, the driver's own library, through ctypes, so the job needs no package for it."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any


@functools.cache
def library() -> Any:
    """Raises:
    OSError: there is no driver.
    """
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    return nvml


@functools.cache
def handle(device: Any) -> ctypes.c_void_p:
    """NVML's handle of a torch.device; if unknown to NVML, a null pointer, which NVML rejects.

    Raises:
        OSError: there is no driver.
    """
    uuid = str(sys.modules["torch"].cuda.get_device_properties(device).uuid)
    named = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    found = ctypes.c_void_p()
    library().nvmlDeviceGetHandleByUUID(named.encode(), ctypes.byref(found))
    return found


def busy_share(device: Any) -> float:
    """Share of the last second or less in which ``device`` ran a kernel of any program; 0.0 if
    unknown."""
    rates = (ctypes.c_uint * 2)()  # nvmlUtilization_t: of the GPU and of its memory, in percent
    try:
        failed = library().nvmlDeviceGetUtilizationRates(handle(device), ctypes.byref(rates))
    except Exception:  # no driver, or an old one
        return 0.0
    return 0.0 if failed else rates[0] / 100  # a MIG slice has no such figure
