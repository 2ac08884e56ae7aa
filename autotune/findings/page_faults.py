"""The allocator returns memory to the OS after every step; the kernel maps and clears it again."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.words import duration_words
from autotune_spaces.knobs.malloc import RETAINING

# per iteration. A steady loop whose allocator keeps its memory has 0 to about 300
LEAST_FAULTS = 1000.0
LEAST_SHARE = 0.05  # of the CPU time
# kernel time of one page fault, unmapping included; measured on a virtual machine: 1.7 to 2.6 µs
FAULT_S = 3e-6


class PageFaults(Rule):
    name = "page-faults"
    title = "Memory is returned to the OS and mapped again in every step"
    knob = "malloc"
    card = (
        "The allocator gives freed memory back to the system, and the kernel maps and clears"
        " it again, page by page, when the next step asks for it. The rule uses page faults"
        " and CPU time of the timed iterations, because the profiler's own freed blocks make"
        f" the C library keep more memory. Threshold: {LEAST_FAULTS:,.0f} page faults per"
        f" iteration, and {LEAST_SHARE:.0%} of the process's CPU time in the kernel for them"
        f" (at most {FAULT_S * 1e6:.0f} µs each is counted: reading files takes system"
        " time, too). The cost is that share of an iteration; cache misses on the fresh pages"
        " come on top. Not judged if the job computes on a GPU."
    )

    def judge(self, case: Case) -> list[Finding]:
        if case.on_device:
            raise NotJudgeable(
                "on a GPU the driver's system time cannot be separated from that of page faults"
            )
        parts = case.anatomy
        if parts is None or not parts.user_s:
            raise NotJudgeable("page faults were not counted")
        kernel_s = min(parts.system_s, FAULT_S * parts.minor_faults)
        share = kernel_s / (parts.user_s + parts.system_s)
        if parts.minor_faults < LEAST_FAULTS or share < LEAST_SHARE:
            return []
        evidence = (
            f"{parts.minor_faults:,.0f} page faults per iteration: the allocator gives memory back"
            " after every step, and the kernel maps and clears it again."
            f" That takes {duration_words(kernel_s)} of"
            f" {duration_words(parts.user_s + parts.system_s)} CPU time per iteration ({share:.0%})"
            " in the kernel."
        )
        advice = _advice(str(case.config.get("malloc", "default")))
        return [self.finding(case, evidence, advice, share * parts.iteration_s, share=share)]


def _advice(allocator: str) -> str:
    others = (
        "Memory-mapped files and blocks of more than 32 MiB cause page faults whatever the allocator"
        " keeps."
    )
    if allocator != "default":
        return f"malloc={allocator} is already set. {others}"
    variables = " ".join(f"{name}={value}" for name, value in RETAINING.items())
    return (
        "malloc: retain makes the C library keep freed memory. By hand, before the command:"
        f" {variables} (glibc); or preload jemalloc or tcmalloc. {others}"
    )
