"""Ranks that wait for each other."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import at, iteration_s, usual_s

# of the iteration: what DistributedDataParallel hides by design is most of it; a perfect overlap
# would then give 1.11x
SHARE = 0.10

ADVICE = (
    "Fewer and larger exchanges: gradient accumulation with no_sync(), larger buckets"
    " (bucket_cap_mb), bfloat16 gradients (ddp_comm_hooks); or see why the other rank is late."
)


class Communication(Rule):
    name = "communication"
    title = "Waiting for other ranks"
    card = (
        f"More than {SHARE:.0%} of an iteration passes in collective operations that nothing"
        " overlaps: blocking calls, waits for asynchronous ones, and the part of"
        " DistributedDataParallel's gradient exchange that its own statistics say was not hidden"
        " behind backward. The cost is that time on rank 0. It holds waiting for a slower rank,"
        " too. Under NCCL, which runs on the device, the time of its kernels is reported, without a"
        " cost."
    )
    knob = "ddp_bucket_cap_mb"
    also = ("gradient_as_bucket_view", "nccl")
    explains = ("host-bound", "host-work")

    def judge(self, case: Case) -> list[Finding]:
        if max(case.evidence.world_size, case.job.world_size) < 2:
            raise NotJudgeable("the job runs in one process")
        if case.on_device and not case.evidence.communication_s:
            return self._on_device(case)
        if not case.evidence.communication_s:
            raise NotJudgeable(
                case.evidence.blind.get("calls", "collective operations could not be watched")
            )
        whole = iteration_s(case)
        cost = usual_s(case.evidence.communication_s)
        if cost <= SHARE * whole:
            return []
        calls = sorted(
            (c for c in case.evidence.calls if c.kind == "collective"), key=lambda c: -c.seconds
        )
        evidence = (
            f"{of_iteration(cost, whole)} are spent in non-overlapped communication among"
            f" {case.evidence.world_size} ranks"
        )
        evidence += f", most of it in {calls[0].detail} at {at(calls[0].place)}." if calls else "."
        return [
            self.finding(
                case, evidence, ADVICE, cost, [c.place for c in calls[:4]], knob=_knob(case)
            )
        ]

    def _on_device(self, case: Case) -> list[Finding]:
        """NCCL's kernels run beside others: their time is known, how much of it is hidden is not."""
        whole = iteration_s(case)
        rows = [
            row
            for row in case.operators
            if "nccl" in row.name.lower() or any("nccl" in kernel.lower() for kernel in row.kernels)
        ]
        if not case.operators or not case.side.profiled_steps:
            raise NotJudgeable("there is no profile of the device")
        spent = sum(row.self_device_s for row in rows) / case.side.profiled_steps
        if spent <= SHARE * whole:
            return []
        evidence = (
            f"NCCL kernels run for {of_iteration(spent, whole)} on rank 0. How much of that is"
            " hidden behind computing shows in the trace."
        )
        return [self.finding(case, evidence, ADVICE, knob=_knob(case))]


def _knob(case: Case) -> str | None:
    """The rule's own where the job has a DistributedDataParallel it could reach."""
    return None if case.job.ddp else ""
