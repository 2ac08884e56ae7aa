"""A CPU that saves power while it should work."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule

FAST = "performance"
# Governors that follow the load: Linux, Documentation/admin-guide/pm/cpufreq.rst. schedutil does so
# within a scheduler tick; it is the default of current distributions, and still behind
# "performance" for short bursts such as starting kernels.


class CpuGovernor(Rule):
    name = "cpu-governor"
    title = "The CPU is set to save power"
    card = (
        f"A CPU this job may use has another frequency governor than `{FAST}`. What it costs"
        " depends on the load and is not measured: changing it needs root and touches the whole"
        " machine. Not judged where Linux shows no governor: virtual machines, containers."
    )

    def judge(self, case: Case) -> list[Finding]:
        governors = case.evidence.governors
        if not governors:
            raise NotJudgeable(
                "this machine shows no frequency governor, as virtual machines and many"
                " containers do"
            )
        others = sorted({g for g in governors if g != FAST})
        if not others:
            return []
        evidence = (
            f"{sum(g != FAST for g in governors)} of {len(governors)} CPUs run under the governor"
            f" {' and '.join(others)}, not {FAST}. What it costs was not measured."
        )
        return [
            self.finding(
                case,
                evidence,
                "As root: cpupower frequency-set -g performance (for the whole machine, until it is"
                " started again).",
            )
        ]
