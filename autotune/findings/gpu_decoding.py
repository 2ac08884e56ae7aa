"""Pictures decoded on the CPU while the GPU waits."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.loader_bound import WAIT_SHARE
from autotune.findings.measures import iteration_s, place_of, usual_s

DECODING_SHARE = 0.4  # of fetching a batch: without it workers fetch 1.7 times as fast


class GpuDecoding(Rule):
    name = "gpu-decoding"
    title = "JPEG is decoded on the CPU while the GPU waits"
    card = (
        f"At least {WAIT_SHARE:.0%} of an iteration is waiting for batches, and workers spend at"
        f" least {DECODING_SHARE:.0%} of the time in which they fetch them in PIL's decoding of"
        " JPEG. What a GPU would save is not known before it is tried, so no cost is given;"
        " loader-bound has the cost of waiting. Pictures decoded by other libraries are not seen."
        " The place is where the DataLoader is built."
    )

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU")
        fetching, decoding = case.evidence.fetching_s, case.evidence.decoding_s
        if not fetching:
            raise NotJudgeable("no worker was seen to fetch batches")
        whole = iteration_s(case)
        workers = int(case.evidence.loader.get("num_workers") or 1)
        wait = usual_s(case.evidence.phase_times_s.get("data", ()), group=workers)
        if wait < WAIT_SHARE * whole or decoding < DECODING_SHARE * fetching:
            return []
        evidence = (
            f"{decoding / fetching:.0%} of the time in which {workers} workers fetch batches goes"
            f" into PIL's decoding of JPEG, and {of_iteration(wait, whole)} are spent waiting for"
            " the next batch."
        )
        advice = (
            "Let the GPU decode: workers hand over the files' bytes, and"
            ' torchvision.io.decode_jpeg(list_of_bytes, device="cuda") or NVIDIA DALI makes'
            " pictures of them (nvJPEG rounds a little differently). Or store the pictures in the"
            " size that is trained on: smaller files decode faster."
        )
        return [
            self.finding(
                case, evidence, advice, places=[place_of(case.evidence.loader.get("place"))]
            )
        ]
