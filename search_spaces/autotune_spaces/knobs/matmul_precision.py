"""How precisely float32 matrix products are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Undone, Value
from autotune_spaces.domains import BFLOAT16_FLAGS
from autotune_spaces.facts import JobFacts, Machine

WORDS = ("highest", "high", "medium")
TF32_CAPABILITY = (8, 0)
# side of the product used to detect an effect; oneDNN leaves smaller ones to the BLAS, below about
# 200 on an AMD core and 400 on an Intel one
PROBE = 512


class MatmulPrecision(Knob):
    """On a GPU, high and medium both mean TF32 (``at::Context::setFloat32MatmulPrecision``), so
    only high is offered.

    On a CPU, only highest and medium are offered. Measured with torch 2.13 on an AMD core with
    avx512_bf16: "high" gives bit-identical results at the same speed; "medium" passes products from
    about 256 × 256 up to oneDNN and computes 1024 × 1024 in 4.3 ms instead of 9.7 ms, still with
    float32's error. On CPUs with amx_bf16 it rounds the inputs to bfloat16. Convolutions are not
    affected.
    """

    name = "matmul_precision"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True
    example = "high"
    allowed = WORDS
    range = "highest, high (CUDA), medium (CPU)"
    card = Card(
        what=(
            "Lets float32 matrix products use faster units: on a GPU high means TF32"
            " (inputs rounded to 10 bits), and so does medium. On a CPU medium passes"
            " large products to oneDNN; high does nothing there and is not tried."
        ),
        when_it_helps=(
            "float32 training with large matrix products: on GPUs since Ampere, and on"
            " CPUs with avx512_bf16 or amx_bf16 (2.2 times faster for a 1024 × 1024"
            " product on the AMD CPU it was measured on)."
        ),
        when_it_does_not=(
            "Under autocast, where products are no longer float32; with small matrices;"
            " for convolutions, which have their own switch."
        ),
        changes_loss=(
            "It rounds the inputs of products differently; sums stay in float32. The loss check covers it."
        ),
        source=(
            "https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html"
        ),
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return job.matmul_precision

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if job.matmul_precision not in WORDS:
            raise NotApplicable(
                "the job sets fp32_precision itself, which torch does not allow together"
                " with this switch"
            )
        if job.double_precision:
            raise NotApplicable("it is for float32 products, and the job trains in float64")
        if job.device == "cuda":
            if machine.compute_capability < TF32_CAPABILITY:
                raise NotApplicable(
                    f"{machine.device_name or 'this GPU'} has no TF32 units (compute capability"
                    " below 8.0)"
                )
            return ["highest", job.matmul_precision if job.matmul_precision == "medium" else "high"]
        if not machine.cpu_flags.intersection(BFLOAT16_FLAGS):
            raise NotApplicable(
                "torch has no faster float32 product on this CPU (it needs"
                f" {' or '.join(BFLOAT16_FLAGS)})"
            )
        return ["highest", "medium"]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        return "high has no effect on a CPU" if value == "high" and job.device == "cpu" else None

    def apply(self, live: LiveJob, value: Value) -> None:
        live.torch.set_float32_matmul_precision(value)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        try:
            now = live.torch.get_float32_matmul_precision()
        except RuntimeError:  # the job has since used fp32_precision, the newer switches
            return Undone("the job sets fp32_precision itself")
        if now != value:
            return Undone(f"the job set the precision back to {now!r}")
        if live.device == "cpu" and value != "highest" and not _differs(live.torch, str(value)):
            return "float32 products are bit-identical with it on this CPU"
        return None

    def snippet(self, value: Value) -> str:
        return f'torch.set_float32_matmul_precision("{value}")'


def _differs(torch: Any, value: str) -> bool:
    """Whether a product under ``value`` differs in any bit from the one under "highest". Draws no
    random numbers.
    """
    with torch.no_grad():
        ramp = torch.arange(PROBE * PROBE, dtype=torch.float32).view(PROBE, PROBE)
        left, right = torch.sin(ramp), torch.cos(ramp)
        try:
            torch.set_float32_matmul_precision("highest")
            exact = left @ right
        finally:
            torch.set_float32_matmul_precision(value)
        return not torch.equal(exact, left @ right)
