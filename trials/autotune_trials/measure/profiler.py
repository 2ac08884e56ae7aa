"""A torch.profiler window over a few iterations: a gzipped Chrome trace and a table of operators."""

from __future__ import annotations

import os
from typing import Any

ROWS = 40  # operators kept, by self time


class ProfileWindow:
    """torch.profiler between :meth:`start` and :meth:`stop`. Phases show up in the trace as ``autotune::<phase>``."""

    def __init__(self, torch: Any, path: str) -> None:
        """``path``: where the trace goes, ending in .json.gz."""
        self._torch, self._path = torch, path
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        record = profiler.ProfilerAction.RECORD  # with a schedule, even this one, the trace names the iterations
        self._profile = profiler.profile(
            activities=activities, schedule=lambda _: record, record_shapes=True, with_flops=True
        )

    def start(self) -> None:
        self._profile.start()

    def step(self) -> None:
        """Mark the end of an iteration in the trace (``ProfilerStep#n``)."""
        self._profile.step()

    def stop(self) -> tuple[dict[str, Any], ...]:
        """End the window, write the trace, and return :func:`operator_rows`."""
        self._profile.stop()
        temporary = f"{self._path[: -len('.json.gz')]}.{os.getpid()}.json.gz"
        self._profile.export_chrome_trace(temporary)  # may be called once only
        os.replace(temporary, self._path)
        return operator_rows(self._profile)


def operator_rows(profile: Any) -> tuple[dict[str, Any], ...]:
    """The operators of a finished profile, the costliest first.

    A row: ``name``, ``calls``, ``self_time_us`` (on the device if there is one, else on the CPU), ``share`` of all self
    time, ``total_time_us``, ``self_cpu_us``, ``self_device_us``, ``flops`` (forward only, 0 if unknown).
    """
    events = [e for e in profile.key_averages() if not e.key.startswith(("autotune::", "ProfilerStep", "Optimizer."))]
    device = sum(_device_us(e) for e in events) > 0
    rows = []
    for event in events:
        self_us = _device_us(event) if device else float(event.self_cpu_time_total)
        rows.append(
            {
                "name": event.key,
                "calls": int(event.count),
                "self_time_us": self_us,
                "total_time_us": _device_us(event, "device_time_total") if device else float(event.cpu_time_total),
                "self_cpu_us": float(event.self_cpu_time_total),
                "self_device_us": _device_us(event),
                "flops": int(getattr(event, "flops", 0) or 0),
            }
        )
    whole = sum(row["self_time_us"] for row in rows) or 1.0
    rows.sort(key=lambda row: -row["self_time_us"])
    return tuple({**row, "share": row["self_time_us"] / whole} for row in rows[:ROWS])


def _device_us(event: Any, name: str = "self_device_time_total") -> float:
    return float(getattr(event, name, 0.0) or 0.0)
