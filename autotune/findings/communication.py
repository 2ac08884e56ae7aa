"""Ranks that wait for each other."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import at, iteration_s, usual_s

# of the iteration: DistributedDataParallel hides most communication by design; at this share a
# perfect overlap would give 1.11x
SHARE = 0.10

ADVICE = (
    "Make fewer, larger exchanges: gradient accumulation with no_sync(), larger buckets"
    " (bucket_cap_mb), bfloat16 gradients (ddp_comm_hooks); or find out why the other rank is late."
)
SHARDED_ADVICE = (
    "If memory allows, keep the parameters from forward to backward (fully_shard's"
    " reshard_after_forward=False, FullyShardedDataParallel's SHARD_GRAD_OP); gather them in bfloat16"
    " (MixedPrecisionPolicy, MixedPrecision); or find out why the other rank is late."
)


class Communication(Rule):
    name = "communication"
    title = "Waiting for other ranks"
    card = (
        f"More than {SHARE:.0%} of an iteration is spent in collective operations that nothing"
        " overlaps: blocking calls, waits for asynchronous ones, and the part of"
        " DistributedDataParallel's gradient exchange that, by its own statistics, was not"
        " hidden behind backward. The cost is that time on rank 0. It includes waiting for a"
        " slower rank. NCCL runs on the device, so the time of its kernels is reported"
        " without a cost."
    )
    knob = "ddp_bucket_cap_mb"
    also = ("gradient_as_bucket_view", "nccl")
    explains = ("host-bound", "host-work")
    one_finding = True

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
            f"{of_iteration(cost, whole)} is spent in non-overlapped communication among"
            f" {case.evidence.world_size} ranks"
        )
        evidence += f", most of it in {calls[0].detail} at {at(calls[0].place)}." if calls else "."
        return [
            self.finding(
                case, evidence, _advice(case), cost, [c.place for c in calls[:4]], knob=_knob(case)
            )
        ]

    def _on_device(self, case: Case) -> list[Finding]:
        """NCCL's kernels overlap with others: their time is known, how much is hidden is not."""
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
            f"NCCL kernels run for {of_iteration(spent, whole)} on rank 0. The trace shows how much"
            " of that is hidden behind computation."
        )
        return [self.finding(case, evidence, _advice(case), knob=_knob(case))]


def _advice(case: Case) -> str:
    return SHARDED_ADVICE if case.job.sharded else ADVICE


def _knob(case: Case) -> str | None:
    """None (the rule's own knob) if the job has a DistributedDataParallel to set it on."""
    return None if case.job.ddp else ""
