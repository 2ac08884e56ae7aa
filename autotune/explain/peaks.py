"""The measured peaks of the machine, beside its maker's where a data sheet gives them."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.explain.records import Peak
from autotune.explain.vendor import vendor_peaks

# What `measure_peaks` names, and in which unit
FORMATS = ("float32", "tf32", "bfloat16", "float16")
UNITS = {**dict.fromkeys(FORMATS, "FLOP/s"), "memory": "B/s"}


def beside_vendor(measured: Mapping[str, float], device_name: str) -> tuple[Peak, ...]:
    """Every measured peak as a record. CPUs have no vendor's figure: it would need the clock under
    load, which no sheet gives.
    """
    promised, sheet = vendor_peaks(device_name)
    return tuple(
        Peak(name, measured[name], promised.get(name), sheet if name in promised else "")
        for name in (*UNITS, "dispatch")
        if name in measured
    )
