"""torch.tensor(…) on arrays and lists."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case
from autotune.findings.measures import need
from autotune.findings.sites import LEAST_SHARE, Site, SiteRule, times


class ArrayCopies(SiteRule):
    name = "array-copies"
    title = "Arrays copied into tensors"
    card = (
        "Every step makes tensors from arrays or lists with torch.tensor(…) or"
        " torch.as_tensor(…), which copies the data (lists element by element). The cost is"
        f" that of the statement. Threshold: {LEAST_SHARE:.0%} of an iteration. Copies in"
        " DataLoader workers are not seen; those made while the training process waits for a batch"
        " are part of loader-bound's cost."
    )
    kinds = ("tensor_from_array",)
    explains = ("host-bound",)

    def judge(self, case: Case) -> list[Finding]:
        need(case, "copies")
        return super().judge(case)

    def says(self, site: Site) -> str:
        return f"makes {site.detail}, {times(site.per_step)} an iteration"

    def advice(self, site: Site) -> str:
        if "array" in site.detail.rpartition(" of ")[2]:
            return (
                "torch.from_numpy(array) shares the array's memory and copies nothing. Make the"
                " array in the tensor's type (NumPy's own is float64), or it is converted."
            )
        return (
            "Keep the data in one array or tensor from the start: torch.from_numpy copies nothing;"
            " numpy.stack a list of arrays first."
        )
