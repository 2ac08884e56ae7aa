"""Host tensors checked, or turned into Python objects, in every step."""

from __future__ import annotations

from autotune.findings.sites import CALLED, LEAST_SHARE, Site, SiteRule, times


class TensorReadout(SiteRule):
    name = "tensor-readout"
    title = "Tensors read back in every step"
    card = (
        "Every step checks tensors on the host (NaN checks, norms) or turns them into Python"
        " numbers and lists. On a CPU there is no device to wait for; the cost is that of the"
        " statement, including everything torch and the job compute only to read the result. Where"
        " a library reads the tensor, only the time of its calls counts. Threshold:"
        f" {LEAST_SHARE:.0%} of an iteration. numpy() copies nothing and is not counted."
    )
    kinds = ("item", "tolist", "bool", "float", "int")
    explains = ("host-bound",)

    def counts(self, site: Site) -> bool:
        return site.device == "cpu"

    def says(self, site: Site) -> str:
        return (
            f"{CALLED[site.kind]}{f' of {site.detail}' if site.kind == 'tolist' else ''},"
            f" {times(site.per_step)} an iteration"
        )

    def advice(self, site: Site) -> str:
        if site.kind == "tolist":
            return (
                "Keep tensors (detach()) or NumPy arrays (numpy() copies nothing); Python lists"
                " hold an object for every number."
            )
        if site.kind != "bool":
            return (
                "Compute with whole tensors and read the result once; what is only logged or"
                " checked can be read every few hundred steps."
            )
        return (
            "Check every few hundred steps, or only when the loss itself is not finite;"
            " torch.isfinite(loss) says as much in one check. Checks that torch.distributions"
            " makes of its parameters stop with validate_args=False."
        )
