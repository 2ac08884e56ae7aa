"""Peak figures from data sheets: dense, without structured sparsity, at the device's boost clock.

Only devices whose data sheet states each figure plainly; others have only the measured peak.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Pattern for torch's device name, source, TFLOP/s of each type, GB/s of memory; 0: not stated. The
# first match counts.
FIGURES = "float32 tf32 bfloat16 float16 memory".split()
SHEETS = (
    (r"\bH200\b(?!.*NVL)", "H200 SXM data sheet", 67, 494.5, 989.5, 989.5, 4800),
    (r"\bH100 PCIe\b", "H100 PCIe data sheet", 51, 378, 756, 756, 2000),
    (r"\bH100 80GB HBM3\b", "H100 SXM data sheet", 67, 494.5, 989.5, 989.5, 3350),
    (r"\bA100(.*80GB.*PCIe|-PCIE-80GB)", "A100 80GB PCIe data sheet", 19.5, 156, 312, 312, 1935),
    (r"\bA100-SXM.*80GB", "A100 80GB SXM data sheet", 19.5, 156, 312, 312, 2039),
    (r"\bA100.*40GB", "A100 40GB data sheet", 19.5, 156, 312, 312, 1555),
    (r"\bL40S\b", "L40S data sheet", 91.6, 183, 362, 362, 864),
    (r"\bL4\b", "L4 data sheet", 30.3, 60, 121, 121, 300),
    (r"\bA10\b", "A10 data sheet", 31.2, 62.5, 125, 125, 600),
    (r"\bV100-SXM2", "V100 data sheet", 15.7, 0, 0, 125, 900),
    (r"\bV100-PCIE", "V100 data sheet", 14, 0, 0, 112, 900),
    (r"\bT4\b", "T4 data sheet", 8.1, 0, 0, 65, 0),
    (r"\bRTX 4090\b(?! D)", "Ada architecture paper", 82.6, 82.6, 165.2, 0, 1008),
    (r"\bRTX 3090\b(?! Ti)", "GA102 architecture paper", 35.6, 35.6, 71, 0, 936),
)


def vendor_peaks(device_name: str) -> tuple[Mapping[str, float], str]:
    """(peak -> FLOP/s or bytes/s, source of the figures); ({}, "") for devices not listed."""
    # a slice of a card, or a slower chip of the same name
    if re.search(r"\bMIG\b|Laptop|Max-Q", device_name):
        return {}, ""
    for pattern, sheet, *figures in SHEETS:
        if re.search(pattern, device_name):
            units = (1e12, 1e12, 1e12, 1e12, 1e9)
            peaks = {k: n * unit for k, n, unit in zip(FIGURES, figures, units) if n}
            return peaks, f"NVIDIA {sheet}"
    return {}, ""
