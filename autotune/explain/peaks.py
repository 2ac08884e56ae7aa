"""The two ceilings of the roofline, measured once a machine and remembered.

    $XDG_CACHE_HOME/autotune/peaks-<hash of hardware, torch, threads>.json
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from autotune.executors.base import Executor
from autotune.explain.records import Peak
from autotune.explain.vendor import vendor_peaks
from autotune_spaces.facts import Machine
from autotune_trials.paths import publish

ORDER = ("float32", "tf32", "bfloat16", "float16", "memory")


def machine_peaks(executor: Executor, machine: Machine, threads: int, device: str = "") -> tuple[Peak, ...]:
    """Peaks of ``machine``'s ``device`` ("": the one it has) with ``threads`` intra-op threads; () where the executor cannot measure them.

    A cache that cannot be read or written costs a few seconds and nothing else.
    """
    device = device or machine.device
    path = cache_file(machine, threads, device)
    figures = _cached(path)
    if not figures:
        figures = {k: v for k, v in executor.measure_peaks(threads, device).items() if k in ORDER and math.isfinite(v) and v > 0}
        if figures:
            _keep(path, figures)
    promised, sheet = vendor_peaks(machine.device_name if device == "cuda" else "")
    return tuple(
        Peak(name, figures[name], promised.get(name), sheet if name in promised else "") for name in ORDER if name in figures
    )


def cache_file(machine: Machine, threads: int, device: str) -> Path:
    """Where the peaks of this hardware and software are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    facts = [device, machine.device_name, machine.cpu_model, machine.cores, machine.torch_version, machine.cuda_version,
             sorted(machine.cpu_flags), threads]  # fmt: skip
    return Path(base) / "autotune" / f"peaks-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}.json"


def _cached(path: Path) -> Mapping[str, float]:
    try:
        data = json.loads(path.read_text("utf-8"))
        return {str(k): float(v) for k, v in data.items() if k in ORDER}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep(path: Path, figures: Mapping[str, float]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, json.dumps(dict(figures)))
    except OSError:  # a home that is read-only or full: measured again next time
        pass
