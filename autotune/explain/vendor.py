"""What data sheets promise: dense figures, without structured sparsity, at the device's boost
clock.

Only devices whose data sheet states each figure plainly; for the others the measured peak stands
alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

T, G = 1e12, 1e9

# (pattern of torch's device name, name of the data sheet, {peak: FLOP/s or bytes/s}); the first
# that matches counts.
SHEETS: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    (
        r"\bH200\b(?!.*NVL)",
        "NVIDIA H200 SXM data sheet",
        {
            "float32": 67 * T,
            "tf32": 494.5 * T,
            "bfloat16": 989.5 * T,
            "float16": 989.5 * T,
            "memory": 4800 * G,
        },
    ),
    (
        r"\bH100 PCIe\b",
        "NVIDIA H100 PCIe data sheet",
        {
            "float32": 51 * T,
            "tf32": 378 * T,
            "bfloat16": 756 * T,
            "float16": 756 * T,
            "memory": 2000 * G,
        },
    ),
    (
        r"\bH100 80GB HBM3\b",
        "NVIDIA H100 SXM data sheet",
        {
            "float32": 67 * T,
            "tf32": 494.5 * T,
            "bfloat16": 989.5 * T,
            "float16": 989.5 * T,
            "memory": 3350 * G,
        },
    ),
    (
        r"\bA100.*80GB.*PCIe|\bA100-PCIE-80GB",
        "NVIDIA A100 80GB PCIe data sheet",
        {
            "float32": 19.5 * T,
            "tf32": 156 * T,
            "bfloat16": 312 * T,
            "float16": 312 * T,
            "memory": 1935 * G,
        },
    ),
    (
        r"\bA100-SXM.*80GB",
        "NVIDIA A100 80GB SXM data sheet",
        {
            "float32": 19.5 * T,
            "tf32": 156 * T,
            "bfloat16": 312 * T,
            "float16": 312 * T,
            "memory": 2039 * G,
        },
    ),
    (
        r"\bA100.*40GB",
        "NVIDIA A100 40GB data sheet",
        {
            "float32": 19.5 * T,
            "tf32": 156 * T,
            "bfloat16": 312 * T,
            "float16": 312 * T,
            "memory": 1555 * G,
        },
    ),
    (
        r"\bL40S\b",
        "NVIDIA L40S data sheet",
        {
            "float32": 91.6 * T,
            "tf32": 183 * T,
            "bfloat16": 362 * T,
            "float16": 362 * T,
            "memory": 864 * G,
        },
    ),
    (
        r"\bL4\b",
        "NVIDIA L4 data sheet",
        {
            "float32": 30.3 * T,
            "tf32": 60 * T,
            "bfloat16": 121 * T,
            "float16": 121 * T,
            "memory": 300 * G,
        },
    ),
    (
        r"\bA10\b",
        "NVIDIA A10 data sheet",
        {
            "float32": 31.2 * T,
            "tf32": 62.5 * T,
            "bfloat16": 125 * T,
            "float16": 125 * T,
            "memory": 600 * G,
        },
    ),
    (
        r"\bV100-SXM2",
        "NVIDIA V100 data sheet",
        {"float32": 15.7 * T, "float16": 125 * T, "memory": 900 * G},
    ),
    (
        r"\bV100-PCIE",
        "NVIDIA V100 data sheet",
        {"float32": 14 * T, "float16": 112 * T, "memory": 900 * G},
    ),
    (r"\bT4\b", "NVIDIA T4 data sheet", {"float32": 8.1 * T, "float16": 65 * T}),
    (
        r"\bRTX 4090\b(?! D)",
        "NVIDIA Ada architecture paper",
        {"float32": 82.6 * T, "tf32": 82.6 * T, "bfloat16": 165.2 * T, "memory": 1008 * G},
    ),
    (
        r"\bRTX 3090\b(?! Ti)",
        "NVIDIA GA102 architecture paper",
        {"float32": 35.6 * T, "tf32": 35.6 * T, "bfloat16": 71 * T, "memory": 936 * G},
    ),
)


def vendor_peaks(device_name: str) -> tuple[Mapping[str, float], str]:
    """(peak -> FLOP/s or bytes/s, whose figures these are); ({}, "") for devices not listed."""
    for pattern, sheet, figures in SHEETS:
        if re.search(pattern, device_name):
            return figures, sheet
    return {}, ""
