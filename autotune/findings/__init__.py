"""Ways of losing time: one file a rule, one line here.

What cannot be judged says why; a healthy job gets nothing. How a rule is added stands in
CONTRIBUTING.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.judging import Findings, judge_by

_RULES = {  # module -> class, in the order in which findings of one cost are told
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
    "straggler_steps": "StragglerSteps",
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
    "memory_nearly_full": "MemoryNearlyFull",
    "cpu_governor": "CpuGovernor",
}
RULES: tuple[Rule, ...] = tuple(
    getattr(importlib.import_module(f"{__name__}.{module}"), name)()
    for module, name in _RULES.items()
)


def judge(cases: Mapping[str, Case]) -> Findings:
    """Every rule on every side ("baseline", "winner"), and what became of each finding."""
    return judge_by(RULES, cases)


__all__ = ["RULES", "Case", "Findings", "NotJudgeable", "Rule", "judge"]
