"""Tensor cores are not used."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.explain.records import Finding, Operator
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import compute_s, dimensions, iteration_s, products_s
from autotune.words import duration_words

TENSOR_CORES = (7, 0)  # compute capability of the first GPUs that have them (Volta)
TF32 = (8, 0)  # compute capability of the first that use them for float32 (Ampere)
SMALLEST = 16  # below this a product is too small for a Tensor-core tile
COST_SHARE = 0.05
FORMATS = ("tf32", "bfloat16", "float16")
# Words in the names of kernels that run on Tensor cores (cuBLAS, cuDNN, CUTLASS).
MARKS = "tensorop 16816 1688 884 hmma wgmma gmma mma tf32 bf16 f16 flash nvjet".split()
# Words in the names of those that do not, though "mma" may be in "xmma".
ORDINARY = ("ffma", "simt", "f32f32_f32f32_f32")


class NoTensorCores(Rule):
    name = "no-tensor-cores"
    title = "Tensor cores are not used"
    card = (
        f"On a GPU with Tensor cores (compute capability {TENSOR_CORES[0]}.{TENSOR_CORES[1]}"
        f" or higher), float32 products with dimensions of at least {SMALLEST} run on other"
        " units: none of their kernels has a Tensor-core name or, where kernels are unknown,"
        " neither TF32 nor autocast is on. The cost is what Tensor cores would save, by the"
        " measured peaks and at the same distance from the roof; where memory is the limit,"
        f" only what 16 bits save there. Threshold: {COST_SHARE:.0%} of an iteration."
    )
    knob = "amp_dtype"
    also = ("matmul_precision",)

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU: there are no Tensor cores")
        if tuple(case.machine.compute_capability) < TENSOR_CORES:
            raise NotJudgeable(f"{case.machine.device_name} has no Tensor cores")
        whole, computing = iteration_s(case), compute_s(case)
        rows, time_s = products_s(case, lambda r: large(r) and not on_tensor_cores(r, case))
        peaks = {peak.name: peak.value for peak in case.peaks}
        shares = [(row.share, _saved(row, peaks)) for row in rows]
        known = [share * saved for share, saved in shares if saved is not None]
        cost = sum(known) * computing if known else None
        if not rows or (time_s if cost is None else cost) < COST_SHARE * whole:
            return []
        first = f"{rows[0].name} {rows[0].shapes}"
        what = f"{first}, in float32, takes"
        if len(rows) > 1:
            what = f"{first} and {len(rows) - 1} more float32 products take"
        evidence = (
            f"{what} {duration_words(time_s)} of each {duration_words(whole)} iteration without Tensor"
            " cores"
        )
        evidence += (
            f"; on Tensor cores they would take {duration_words(time_s - cost)}, by the peaks"
            " measured here."
            if cost is not None
            else "; the speed-up on Tensor cores was not measured here."
        )
        advice = 'torch.autocast("cuda", dtype=torch.float16) with a GradScaler.'
        if tuple(case.machine.compute_capability) >= TF32:
            advice = (
                'torch.autocast("cuda", dtype=torch.bfloat16), or'
                ' torch.set_float32_matmul_precision("high").'
            )
        return [self.finding(case, evidence, advice, cost)]


def on_tensor_cores(row: Operator, case: Case) -> bool:
    """Decide for float32 by its kernels' names; if they are unknown, by the settings."""
    if "float32" not in row.dtypes.split():
        return True  # half or double precision, or unknown: nothing is claimed
    if row.kernels:
        return any(map(_tensor_core_name, row.kernels))
    if tuple(case.machine.compute_capability) < TF32:
        return False
    precision = str(case.config.get("matmul_precision") or case.job.matmul_precision)
    # cuDNN uses TF32 by default
    return precision in ("high", "medium") or "conv" in row.name


def _tensor_core_name(kernel: str) -> bool:
    name = kernel.lower()
    return any(mark in name for mark in MARKS) and not any(word in name for word in ORDINARY)


def large(row: Operator) -> bool:
    """Whether it has enough to do for Tensor cores; depthwise convolutions have not."""
    matrices = [shape for shape in dimensions(row.shapes) if len(shape) >= 2]
    if "conv" in row.name:
        return bool(matrices) and matrices[-1][1] > 1  # the kernel's channels
    return bool(matrices) and min(min(shape[-2:]) for shape in matrices) >= SMALLEST


def _saved(row: Operator, peaks: Mapping[str, float]) -> float | None:
    """Share of its time that Tensor cores would save, by the measured peaks; None: unknown.

    A product that waits for memory gains only what its operands shrink.
    """
    fastest = max(FORMATS, key=lambda name: peaks.get(name, 0.0))
    fast, slow = peaks.get(fastest, 0.0), peaks.get("float32", 0.0)
    if not slow or fast <= slow:
        return None
    memory_s = row.nbytes / peaks["memory"] if row.nbytes and peaks.get("memory") else 0.0
    flops = row.flops or 1.0
    new_s = max(flops / fast, memory_s * (1.0 if fastest == "tf32" else 0.5))
    return max(0.0, 1.0 - new_s / max(flops / slow, memory_s))
