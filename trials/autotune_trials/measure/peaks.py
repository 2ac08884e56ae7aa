"""Measures the machine's peaks: matmul in each number format, memory bandwidth, and the cost of an
empty call.

    python -m autotune_trials.measure.peaks [--threads N] [--device cuda]      prints one JSON object

    round 1 │ float32 │ bfloat16 … │ copy │ triad │   round 2 │ float32 │ …      best of all rounds

Runs in its own process for a few seconds; results are cached in the user's cache directory under
the fingerprint of hardware and software. Rounds alternate between measurements, so that a temporary
load spoils one round of each rather than all rounds of one. Results measured while tasks waited for
a CPU, or just after other programs used the GPU, are used but not cached. Units: FLOP/s (2·n³ per
product of n×n matrices), bytes/s (bytes read plus bytes written), seconds for ``dispatch``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from autotune_spaces import machine
from autotune_spaces.domains import BFLOAT16_FLAGS

SCHEMA_VERSION = 2
ROUNDS = 5
# matrices are enlarged until a product takes this long, so that call overhead is negligible
SHORTEST_S = {"cpu": 0.03, "cuda": 0.002}
LARGEST = {"cpu": 4096, "cuda": 16384}
ROUND_S = 0.1  # time per measurement and round
LEAST_BYTES = 1 << 26  # smallest array for the bandwidth measurement
# arrays are this many times the last-level cache, as STREAM requires (J. McCalpin, "STREAM:
# sustainable memory bandwidth")
CACHES = 4
LARGEST_SHARE = 0.1  # of free memory, for all three arrays
CALLS = 300  # empty calls timed
# results are cached only if tasks waited for a CPU for at most this share of the time, and other
# programs used the GPU for at most this share of the second before
QUIET = 0.1


def measure(torch: Any, device: str) -> dict[str, float]:
    """Peaks of ``device`` with torch's current thread count. Units: see the module docstring."""
    runs = workloads(torch, device)
    best = dict.fromkeys(runs, 0.0)
    for _ in range(ROUNDS):
        for name, (amount, run) in runs.items():
            until = perf_counter() + ROUND_S
            while True:
                best[name] = max(best[name], amount / _seconds(torch, device, run))
                if perf_counter() > until:
                    break
    memory = max(best.pop("copy"), best.pop("triad"))
    return {**best, "memory": memory, "dispatch": _dispatch_s(torch, device)}


def workloads(torch: Any, device: str) -> dict[str, tuple[float, Callable[[], Any]]]:
    """The measurements: name -> (FLOPs or bytes of one run, the function to run)."""
    runs: dict[str, tuple[float, Callable[[], Any]]] = {}
    for name, dtype, tf32 in formats(torch, device):
        try:
            runs[name] = _product(torch, device, dtype, tf32)
        except RuntimeError:  # "not implemented for 'Half'", out of memory
            continue
    copied, added = _bandwidth(torch, device)
    return {**runs, "copy": copied, "triad": added}


def formats(torch: Any, device: str) -> list[tuple[str, Any, bool]]:
    """(name, dtype, use TF32) of the number formats that ``device`` computes natively. On a CPU
    without native support bfloat16 is slower than float32 and no meaningful ceiling; float16 is on
    any CPU."""
    found = [("float32", torch.float32, False)]
    if device == "cuda":
        found.append(("float16", torch.float16, False))
        if torch.cuda.get_device_capability()[0] >= 8:
            found += [("tf32", torch.float32, True), ("bfloat16", torch.bfloat16, False)]
    elif machine.cpu()[1].intersection(BFLOAT16_FLAGS):
        found.append(("bfloat16", torch.bfloat16, False))
    return found


def _product(torch: Any, device: str, dtype: Any, tf32: bool) -> tuple[float, Callable[[], Any]]:
    """(FLOPs, function) of a product of square matrices large enough to measure."""
    size = 256 if device == "cpu" else 2048

    def make(n: int) -> Callable[[], Any]:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        out = torch.empty(n, n, device=device, dtype=dtype)

        def run() -> Any:
            if device == "cuda":
                torch.backends.cuda.matmul.allow_tf32 = tf32
            return torch.mm(a, b, out=out)

        return run

    run = make(size)
    _seconds(torch, device, run)  # warm-up: the first call selects the kernel
    while (
        size < LARGEST[device]
        and min(_seconds(torch, device, run) for _ in range(2)) < SHORTEST_S[device]
    ):
        size *= 2
        run = make(size)
        _seconds(torch, device, run)
    return 2.0 * size**3, run


def _bandwidth(
    torch: Any, device: str
) -> tuple[tuple[float, Callable[[], Any]], tuple[float, Callable[[], Any]]]:
    """(bytes, function) of a copy and of a triad a = b + s·c, on arrays larger than any cache.

    Not in place: most operators write to memory of their own. As in STREAM, the CPU's fetch of the
    memory it is about to write is not counted."""
    wanted = max(LEAST_BYTES, CACHES * _last_cache_bytes())
    if device == "cuda":
        wanted = max(wanted, 1 << 30)
    count = int(min(wanted, LARGEST_SHARE * _free_bytes(torch, device) / 3)) // 4
    a, b, c = (torch.ones(count, device=device) for _ in range(3))
    return (2.0 * 4 * count, lambda: a.copy_(b)), (
        3.0 * 4 * count,
        lambda: torch.add(b, c, alpha=3.0, out=a),
    )


def _seconds(torch: Any, device: str, run: Callable[[], Any]) -> float:
    if device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    began = perf_counter()
    run()
    return perf_counter() - began


def _dispatch_s(torch: Any, device: str) -> float:
    """Median time of an addition of two numbers under the profiler, configured as in the profiled
    window, since operator times include the profiler's own cost. On a device: the time between two
    such calls, which the host needs per kernel launch.
    """
    profiler = torch.profiler
    one = torch.ones(1, device=device)
    activities = [profiler.ProfilerActivity.CPU] + (
        [profiler.ProfilerActivity.CUDA] if device == "cuda" else []
    )
    with profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(CALLS):
            one.add(one)
        if device == "cuda":
            torch.cuda.synchronize()
    calls = sorted(
        (e.time_range.start, e.time_range.end)
        for e in profile.events()
        if e.name == "aten::add" and e.device_type == torch.autograd.DeviceType.CPU
    )
    if device == "cuda":
        spans = [later[0] - earlier[0] for earlier, later in zip(calls, calls[1:], strict=False)]
    else:
        spans = [end - start for start, end in calls]
    return float(sorted(spans)[len(spans) // 2]) / 1e6 if spans else 0.0


def _last_cache_bytes() -> int:
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        largest = max(largest, int(text.rstrip("KM") or 0) * factor)
    return largest


def _free_bytes(torch: Any, device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return 4.0 * (1 << 30)


# ---------------------------------------------------------------- cache


def fingerprint(torch: Any, device: str) -> dict[str, Any]:
    """Everything the peaks depend on."""
    found = {
        "cpu": machine.cpu()[0],
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": device,
        "schema_version": SCHEMA_VERSION,
    }
    if device == "cuda":
        found |= {"name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


def cache_file(of: Mapping[str, Any]) -> Path:
    """``$XDG_CACHE_HOME/autotune/peaks-<hash>.json``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
    return Path(base) / "autotune" / f"peaks-{digest}.json"


def load(of: Mapping[str, Any]) -> dict[str, float] | None:
    """Cached peaks for this fingerprint; None if there are none or they cannot be read."""
    try:
        data = json.loads(cache_file(of).read_text("utf-8"))
        return (
            {str(k): float(v) for k, v in data["peaks"].items()}
            if data["fingerprint"] == dict(of)
            else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(of: Mapping[str, Any], peaks: Mapping[str, float]) -> None:
    """Cache the peaks for the next run; ignored if the directory is not writable."""
    from autotune_trials.paths import publish

    try:
        path = cache_file(of)
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, json.dumps({"fingerprint": dict(of), "peaks": dict(peaks)}, indent=1))
    except OSError:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m autotune_trials.measure.peaks",
        description="Measure this machine's peak performance; prints JSON.",
    )
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: torch's default")
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:1; default: a GPU if any")
    given = parser.parse_args()

    import torch

    from autotune_trials.measure import nvml
    from autotune_trials.measure.machine_load import between, snapshot

    wanted = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device, _, index = wanted.partition(":")
    if index:
        torch.cuda.set_device(int(index))
    if given.threads > 0:
        torch.set_num_threads(given.threads)
    of = fingerprint(torch, device)
    peaks = load(of)
    kept = peaks is not None
    if peaks is None:
        shared = device == "cuda" and nvml.busy_share(torch.cuda.current_device()) > QUIET
        before, peaks = snapshot(), measure(torch, device)
        if between((before, snapshot())).cpu_pressure <= QUIET and not shared:
            save(of, peaks)
    json.dump({"peaks": peaks, "fingerprint": of, "kept": kept}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
