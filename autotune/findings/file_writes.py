"""Every step writes a file."""

from __future__ import annotations

from autotune.findings.sites import LEAST_SHARE, Site, SiteRule, times


class FileWrites(SiteRule):
    name = "file-writes"
    title = "A file written in every step"
    card = (
        "Every step saves or opens a file for writing. The cost is the time of these"
        " statements; for a file opened in a `with` statement, that of the whole block."
        f" Threshold: {LEAST_SHARE:.0%} of an iteration. Occasional writes are reported by"
        " periodic-stall."
    )
    kinds = ("file_write",)
    explains = ("host-bound",)

    def says(self, site: Site) -> str:
        return f"{site.detail}, {times(site.per_step)} an iteration"

    def advice(self, site: Site) -> str:
        return (
            "Write every few hundred steps, keep the file open, or write from a background thread."
        )
