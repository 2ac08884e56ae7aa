"""The machine's measured peaks, beside the vendor's figures where a data sheet gives them."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.explain.records import Peak
from autotune.explain.vendor import vendor_peaks

# Names and units of the peaks that `measure_peaks` returns
FORMATS = ("float32", "tf32", "bfloat16", "float16")
UNITS = {**dict.fromkeys(FORMATS, "FLOP/s"), "memory": "B/s"}


def beside_vendor(measured: Mapping[str, float], device_name: str) -> tuple[Peak, ...]:
    """Every measured peak as a record, with the vendor's figure where known.

    CPUs have none: it would need the clock under load, which no data sheet gives.
    """
    promised, sheet = vendor_peaks(device_name)
    return tuple(
        Peak(name, measured[name], promised.get(name), sheet if name in promised else "")
        for name in (*UNITS, "dispatch")
        if name in measured
    )
