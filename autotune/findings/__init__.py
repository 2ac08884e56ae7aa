"""Ways of losing time: one file per rule, one line here.

A rule that cannot judge says why; a healthy job gets no findings. CONTRIBUTING.md says how to add a
rule.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.judging import Findings, judge_by

_RULES = {  # module -> class; findings of equal cost appear in this order
    "loader_bound": "LoaderBound",
    "gpu_decoding": "GpuDecoding",
    "device_sync": "DeviceSync",
    "tensor_readout": "TensorReadout",
    "log_printing": "LogPrinting",
    "file_writes": "FileWrites",
    "array_copies": "ArrayCopies",
    "made_on_host": "MadeOnHost",
    "transfers": "TransfersNotOverlapped",
    "periodic_stall": "PeriodicStall",
    "gc_pauses": "GcPauses",
    "page_faults": "PageFaults",
    "host_work": "HostWork",
    "host_bound": "HostBound",
    "launch_bound": "LaunchBound",
    "optimizer_loop": "EagerOptimizer",
    "graph_breaks": "GraphBreaks",
    "recompiles": "Recompiles",
    "casts": "Casts",
    "no_tensor_cores": "NoTensorCores",
    "odd_dimensions": "OddDimensions",
    "float8": "Float8",
    "padding": "Padding",
    "communication": "Communication",
}
RULES: tuple[Rule, ...] = tuple(
    getattr(importlib.import_module(f"{__name__}.{module}"), name)()
    for module, name in _RULES.items()
)


def judge(cases: Mapping[str, Case]) -> Findings:
    """Ask every rule about every side ("baseline", "winner") and match the findings of both."""
    return judge_by(RULES, cases)


__all__ = ["RULES", "Case", "Findings", "NotJudgeable", "Rule", "judge"]
