"""The loop waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable
from autotune.findings.sites import CALLED, LEAST_SHARE, Site, SiteRule, lost_s, times


class DeviceSync(SiteRule):
    name = "device-sync"
    title = "The loop waits for the device"
    card = (
        "Every step reads a tensor on the device (.item(), .cpu(), .numpy(), .tolist(), float,"
        " int, print, bool) or synchronizes explicitly, and waits until the device has caught up;"
        " during that time the device gets no new work. The cost is the time waited, but at most"
        " the device's idle time: waiting while the device is busy costs nothing. Threshold:"
        f" {LEAST_SHARE:.0%} of an iteration. Only on a GPU."
    )
    kinds = tuple(CALLED)
    explains = ("host-bound",)

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU: there is no device to wait for")
        return super().judge(case)

    def counts(self, site: Site) -> bool:
        return site.device == "cuda"

    def cost_s(self, case: Case, found: Sequence[Site]) -> float:
        return lost_s(case, sum(site.call_s for site in found))

    def says(self, site: Site) -> str:
        return f"{CALLED[site.kind]}, {times(site.per_step)} an iteration"

    def advice(self, site: Site) -> str:
        return (
            "Keep it on the device (accumulate with detach()) and read it only every few hundred"
            " steps, or copy it with non_blocking=True and read it a step later."
        )
