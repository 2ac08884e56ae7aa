"""The operator table: what torch.profiler counted, as rows of a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.explain.records import Operator
from autotune_trials.protocol import Record


def operators(record: Record) -> tuple[Operator, ...]:
    """The operators of a profiled record, the costliest first."""
    return tuple(_row(row) for row in record.operators)


def _row(row: Mapping[str, Any]) -> Operator:
    calls, self_s = int(row["calls"]), row["self_time_us"] / 1e6
    return Operator(
        name=row["name"], shapes="", dtypes="", calls=calls, self_time_s=self_s, share=row["share"],
        total_time_s=row["total_time_us"] / 1e6, mean_s=self_s / max(calls, 1), min_s=0.0, max_s=0.0,
        self_cpu_s=row["self_cpu_us"] / 1e6, self_device_s=row["self_device_us"] / 1e6,
    )  # fmt: skip
