"""What this machine reaches at best: FLOP/s of a large matmul at each type, bytes/s of a large copy.

    python -m autotune_trials.measure.peaks --threads 8        {"float32": 1.1e12, "bfloat16": 3.2e12, "memory": 8.0e10}

The two ceilings of a roofline (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009), as this machine reaches them
and not as its data sheet promises. Run in a process of its own, with nothing else at work; takes a few seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

SECONDS_EACH = 0.8  # measured a peak, after warming up
FEWEST_REPEATS = 4
LONGEST_CALL_S = 0.15  # a matmul is made as large as fits in this: several repeats, and far from call overhead
SIDES = (512, 1024, 2048, 4096, 8192)
COPIED_BYTES = {"cpu": 256 * 2**20, "cuda": 2**30}  # at least; beyond every cache
CACHES = 4  # ... and this many times the largest cache


def measure(threads: int | None = None, device: str = "") -> dict[str, float]:
    """Peaks by name: "float32", "tf32", "bfloat16", "float16" in FLOP/s, "memory" in bytes/s (read and written).

    Only types that this device computes natively are measured: bfloat16 on a CPU without support for it is slower than
    float32 and no ceiling of anything. ``threads``: torch's intra-op threads, as the job has them; ``device``: "cpu", "cuda",
    or "" for CUDA where there is any.
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = {"memory": _memory(torch, device)}
    for name in _types(torch, device):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        found[name] = _matmul(torch, device, torch.float32 if name == "tf32" else getattr(torch, name))
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def _types(torch: Any, device: str) -> list[str]:
    if device == "cuda":
        major = torch.cuda.get_device_capability()[0]
        return ["float32", "float16"] + (["tf32", "bfloat16"] if major >= 8 else [])
    from autotune_spaces.machine import cpu

    _, flags = cpu()
    return ["float32"] + (["bfloat16"] if flags & {"avx512_bf16", "amx_bf16"} else [])


def _matmul(torch: Any, device: str, dtype: Any) -> float:
    """FLOP/s of the best of several square matmuls: 2 n³ each."""
    best = 0.0
    for side in SIDES:
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty(side, side, device=device, dtype=dtype)
        seconds = _fastest(torch, device, lambda a=a, b=b, out=out: torch.mm(a, b, out=out))  # type: ignore[misc]
        best = max(best, 2.0 * side**3 / seconds)
        if 8 * seconds > LONGEST_CALL_S:  # the next side takes eight times as long
            break
    return best


def _memory(torch: Any, device: str) -> float:
    """Bytes/s of a copy, counted as read once and written once (as STREAM counts it)."""
    nbytes = max(COPIED_BYTES[device], CACHES * _largest_cache() if device == "cpu" else 0)
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * nbytes / _fastest(torch, device, lambda: target.copy_(source))


def _fastest(torch: Any, device: str, call: Callable[[], Any]) -> float:
    """Seconds of the fastest call: whatever disturbs makes a call slower, never faster."""
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    wait()
    best, began, repeats = float("inf"), perf_counter(), 0
    while repeats < FEWEST_REPEATS or perf_counter() - began < SECONDS_EACH:
        start = perf_counter()
        call()
        wait()
        best = min(best, perf_counter() - start)
        repeats += 1
    return best


def _largest_cache() -> int:
    """Bytes of the last-level cache, 0 if unknown; at most 256 MiB, for two buffers of four times that must fit."""
    from pathlib import Path

    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1], 1))
    return min(max(sizes), 2**28)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="")
    asked = parser.parse_args()
    json.dump(measure(asked.threads, asked.device), sys.stdout)
