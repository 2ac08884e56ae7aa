"""Tensors created on the host and then moved."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable
from autotune.findings.measures import need
from autotune.findings.sites import LEAST_SHARE, Site, SiteRule, sites, times


class MadeOnHost(SiteRule):
    name = "made-on-host"
    title = "Tensor created on the CPU, then moved"
    card = (
        "Every step makes a tensor on the host (torch.randn, zeros, arange …) only to move it to"
        " the device. The cost is the time the host takes to make and move it. Threshold:"
        f" {LEAST_SHARE:.0%} of an iteration."
    )
    kinds = ("made_on_host",)
    explains = ("host-bound",)

    def judge(self, case: Case) -> list[Finding]:
        need(case, "copies")
        if not case.on_device and not sites(case.evidence, self.kinds):
            raise NotJudgeable("the job computes on the CPU: nothing is moved")
        return super().judge(case)

    def says(self, site: Site) -> str:
        return f"makes {site.detail} on the host and moves it, {times(site.per_step)} an iteration"

    def advice(self, site: Site) -> str:
        return (
            "Create it on the device: torch.randn(…, device=device); for reproducible numbers pass"
            " a torch.Generator of that device."
        )
