"""Copies to the device that the host waits for."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import iteration_s, need, phase_s
from autotune.words import duration_words

# below it, even a perfect overlap gives no more than the 2% that confirm asks for
COPY_SHARE = 0.03


class TransfersNotOverlapped(Rule):
    name = "transfer-not-overlapped"
    title = "Copies to the device do not overlap"
    card = (
        "Batches are copied to the device from memory that is not pinned, or by blocking"
        " calls, so that copying does not overlap with computing. The cost is the copy time"
        " on the stream, but at most the time the host waited in the calls. Threshold:"
        f' {COPY_SHARE:.0%} of an iteration. Only on a GPU. Source: PyTorch, "A guide on good'
        ' usage of non_blocking and pin_memory()".'
    )
    knob = "pin_memory"
    also = ("non_blocking",)
    explains = ("host-bound",)

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU: nothing is copied to a device")
        need(case, "calls", "copies")
        whole, steps = iteration_s(case), len(case.evidence.times_s)
        blocking = [t for t in case.evidence.transfers if not (t.pinned and t.non_blocking)]
        waited = sum(t.seconds for t in blocking) / steps
        copying = (
            phase_s(case, "to_device") if case.evidence.phase_times_s.get("to_device") else waited
        )
        cost = min(waited, copying)
        if not blocking or cost < COPY_SHARE * whole:
            return []
        blocking.sort(key=lambda t: -t.seconds)
        unpinned = not all(t.pinned for t in blocking)
        moved = sum(t.nbytes for t in blocking) / steps
        why = (
            "from memory that is not pinned"
            if unpinned
            else "from pinned memory, but by blocking calls"
        )
        evidence = (
            f"{moved / 1e6:,.1f} MB per iteration are copied {why}; {duration_words(cost)} of"
            f" {duration_words(whole)} ({cost / whole:.0%}) are spent copying, with nothing else"
            " running."
        )
        advice = (
            "Use DataLoader(…, pin_memory=True) and tensor.to(device, non_blocking=True): the copy"
            " then overlaps with computation."
        )
        return [
            self.finding(
                case,
                evidence,
                advice,
                cost,
                [t.place for t in blocking],
                knob="pin_memory" if unpinned else "non_blocking",
            )
        ]
