"""Images decoded on the CPU while the GPU waits."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.loader_bound import WAIT_SHARE, wait_s
from autotune.findings.measures import iteration_s, loader_place

DECODING_SHARE = 0.4  # of fetching a batch: without decoding, workers would fetch 1.7 times as fast


class GpuDecoding(Rule):
    name = "gpu-decoding"
    title = "JPEGs are decoded on the CPU while the GPU waits"
    card = (
        f"At least {WAIT_SHARE:.0%} of an iteration is spent waiting for batches, and workers spend"
        f" at least {DECODING_SHARE:.0%} of their fetching time decoding JPEGs with PIL. The saving"
        " is unknown until decoding on a GPU is tried, so no cost is given; loader-bound gives the"
        " cost of waiting. Images decoded by other libraries are not seen. The finding points to"
        " where the DataLoader is built."
    )

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU")
        fetching, decoding = case.evidence.fetching_s, case.evidence.decoding_s
        if not fetching:
            raise NotJudgeable("no worker was seen fetching batches")
        whole = iteration_s(case)
        workers = int(case.evidence.loader.get("num_workers") or 1)
        wait = wait_s(case)
        if not wait or decoding < DECODING_SHARE * fetching:
            return []
        evidence = (
            f"{decoding / fetching:.0%} of the time in which {workers} workers fetch batches is"
            f" spent decoding JPEGs with PIL, and {of_iteration(wait, whole)} is spent waiting for"
            " the next batch."
        )
        advice = (
            "Let the GPU decode: return the files' bytes from the workers, and decode them with"
            ' torchvision.io.decode_jpeg(list_of_bytes, device="cuda") or NVIDIA DALI (nvJPEG'
            " rounds a little differently). Or store the images in the size used for training:"
            " smaller files decode faster."
        )
        return [self.finding(case, evidence, advice, places=[loader_place(case)])]
