"""Ways of losing time: one file a rule, one line here.

What cannot be judged says why; a healthy job gets nothing. How a rule is added stands in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.findings.array_copies import ArrayCopies
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.casts import Casts
from autotune.findings.communication import Communication
from autotune.findings.cpu_governor import CpuGovernor
from autotune.findings.device_sync import DeviceSync
from autotune.findings.file_writes import FileWrites
from autotune.findings.float8 import Float8
from autotune.findings.gc_pauses import GcPauses
from autotune.findings.gpu_decoding import GpuDecoding
from autotune.findings.graph_breaks import GraphBreaks
from autotune.findings.host_bound import HostBound
from autotune.findings.host_work import HostWork
from autotune.findings.judging import Judgement, judge_by
from autotune.findings.launch_bound import LaunchBound
from autotune.findings.loader_bound import LoaderBound
from autotune.findings.log_printing import LogPrinting
from autotune.findings.made_on_host import MadeOnHost
from autotune.findings.memory_nearly_full import MemoryNearlyFull
from autotune.findings.no_tensor_cores import NoTensorCores
from autotune.findings.odd_dimensions import OddDimensions
from autotune.findings.optimizer_loop import EagerOptimizer
from autotune.findings.padding import Padding
from autotune.findings.page_faults import PageFaults
from autotune.findings.periodic_stall import PeriodicStall
from autotune.findings.recompiles import Recompiles
from autotune.findings.straggler_steps import StragglerSteps
from autotune.findings.tensor_readout import TensorReadout
from autotune.findings.transfers import TransfersNotOverlapped

RULES: tuple[Rule, ...] = (
    LoaderBound(),
    GpuDecoding(),
    DeviceSync(),
    TensorReadout(),
    LogPrinting(),
    FileWrites(),
    ArrayCopies(),
    MadeOnHost(),
    TransfersNotOverlapped(),
    PeriodicStall(),
    StragglerSteps(),
    GcPauses(),
    PageFaults(),
    HostWork(),
    HostBound(),
    LaunchBound(),
    EagerOptimizer(),
    GraphBreaks(),
    Recompiles(),
    Casts(),
    NoTensorCores(),
    OddDimensions(),
    Float8(),
    Padding(),
    Communication(),
    MemoryNearlyFull(),
    CpuGovernor(),
)


def judge(cases: Mapping[str, Case]) -> Judgement:
    """Every rule on every side ("baseline", "winner"), and what became of each finding."""
    return judge_by(RULES, cases)


__all__ = ["RULES", "Case", "Judgement", "NotJudgeable", "Rule", "judge"]
