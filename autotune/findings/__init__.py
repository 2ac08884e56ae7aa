"""Ways of losing time: one file a rule, one line here.

What cannot be judged says why; a healthy job gets nothing. How a rule is added stands in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.findings.array_copies import ArrayCopies
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.device_sync import DeviceSync
from autotune.findings.file_writes import FileWrites
from autotune.findings.gc_pauses import GcPauses
from autotune.findings.host_work import HostWork
from autotune.findings.judging import Judgement, judge_by
from autotune.findings.loader_bound import LoaderBound
from autotune.findings.log_printing import LogPrinting
from autotune.findings.made_on_host import MadeOnHost
from autotune.findings.periodic_stall import PeriodicStall
from autotune.findings.straggler_steps import StragglerSteps
from autotune.findings.tensor_readout import TensorReadout

RULES: tuple[Rule, ...] = (
    LoaderBound(),
    DeviceSync(),
    TensorReadout(),
    LogPrinting(),
    FileWrites(),
    ArrayCopies(),
    MadeOnHost(),
    PeriodicStall(),
    StragglerSteps(),
    GcPauses(),
    HostWork(),
)


def judge(cases: Mapping[str, Case]) -> Judgement:
    """Every rule on every side ("baseline", "winner"), and what became of each finding."""
    return judge_by(RULES, cases)


__all__ = ["RULES", "Case", "Judgement", "NotJudgeable", "Rule", "judge"]
