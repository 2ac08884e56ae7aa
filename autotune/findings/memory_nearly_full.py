"""Memory with hardly any room left."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule

# A longer sample, an evaluation or fragmentation of the allocator can take the last tenth;
# autotune's own constraint on the device (constraints.device_memory_fraction) is the same.
FULL_SHARE = 0.9


class MemoryNearlyFull(Rule):
    name = "memory-nearly-full"
    title = "Memory is nearly full"
    card = (
        f"More than {FULL_SHARE:.0%} of the device's memory was reserved at the peak of the"
        " watched iterations; for a job on the CPU, of the memory it may use. No cost is"
        " given: the risk is a crash, or that the allocator has to free memory and request it"
        " again."
    )
    knob = "batch_size"

    def judge(self, case: Case) -> list[Finding]:
        what = "device" if case.on_device else "host"
        memory = case.evidence.memory
        used, total = memory.get(f"{what}_used_gib"), memory.get(f"{what}_total_gib")
        if not used or not total:
            raise NotJudgeable(f"the memory of the {what} could not be read")
        if used <= FULL_SHARE * total:
            return []
        evidence = (
            f"{used:.1f} of {total:.1f} GiB of the {what}'s memory ({used / total:.0%}) is in use:"
            " a longer sample or an evaluation may not fit."
        )
        advice = "Fewer workers, smaller batches, or less data kept in memory."
        if case.on_device:
            advice = "A smaller batch, activation checkpointing, or lower precision."
        return [self.finding(case, evidence, advice)]
