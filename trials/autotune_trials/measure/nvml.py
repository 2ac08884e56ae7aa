"""NVML, the driver's own library, by ctypes: the job's environment need not have a package for it."""

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
    """NVML's of a torch.device; a null pointer, which NVML refuses, if it does not know it.

    Raises:
        OSError: there is no driver.
    """
    uuid = str(sys.modules["torch"].cuda.get_device_properties(device).uuid)
    named = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    found = ctypes.c_void_p()
    library().nvmlDeviceGetHandleByUUID(named.encode(), ctypes.byref(found))
    return found
