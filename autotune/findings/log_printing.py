"""Every step prints."""

from __future__ import annotations

from autotune.findings.sites import CALLED, LEAST_SHARE, Site, SiteRule, times


class LogPrinting(SiteRule):
    name = "log-printing"
    title = "Printing in every step"
    card = (
        "Every step prints or logs. Formatting a tensor takes milliseconds, whatever its size, and"
        " writing a line blocks until the terminal or pipe has taken it. The cost is the time in"
        f" these calls. Threshold: {LEAST_SHARE:.0%} of an iteration. Prints that wait for a GPU are"
        " reported by device-sync."
    )
    kinds = ("print", "log", "repr", "format")
    explains = ("host-bound",)

    def counts(self, site: Site) -> bool:
        return site.device != "cuda"

    def says(self, site: Site) -> str:
        what = {"print": f"prints {site.detail}".strip(), "log": "writes to the log"}
        return f"{what.get(site.kind) or CALLED[site.kind]}, {times(site.per_step)} an iteration"

    def advice(self, site: Site) -> str:
        if site.kind == "repr" or site.detail:
            return "Print single numbers, not tensors, and only every few dozen steps."
        return "Print every few dozen steps; a progress bar with a minimum interval does the same."
