"""A CPU that saves power when it should work."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule

FAST = "performance"
# For governors that follow the load see Linux, Documentation/admin-guide/pm/cpufreq.rst. schedutil
# follows it within a scheduler tick; it is the default of current distributions, and still slower
# than "performance" for short bursts such as kernel launches.


class CpuGovernor(Rule):
    name = "cpu-governor"
    title = "The CPU is set to save power"
    card = (
        f"A CPU this job may use has a frequency governor other than `{FAST}`. The cost"
        " depends on the load and is not measured: changing the governor needs root and"
        " affects the whole machine. Not judged where Linux shows no governor, as in virtual"
        " machines and containers."
    )

    def judge(self, case: Case) -> list[Finding]:
        governors = case.evidence.governors
        if not governors:
            raise NotJudgeable(
                "this machine shows no frequency governor, like virtual machines and many"
                " containers"
            )
        others = sorted({g for g in governors if g != FAST})
        if not others:
            return []
        evidence = (
            f"{sum(g != FAST for g in governors)} of {len(governors)} CPUs use the governor"
            f" {' and '.join(others)}, not {FAST}. The cost was not measured."
        )
        return [
            self.finding(
                case,
                evidence,
                "As root: cpupower frequency-set -g performance (for the whole machine, until the"
                " next boot).",
            )
        ]
