"""How exactly float32 matrix products are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import one_of
from autotune_spaces.facts import JobFacts, Machine

WORDS = ("highest", "high", "medium")
TF32_CAPABILITY = (8, 0)
CPU_FLAGS = ("avx512_bf16", "amx_bf16")
# side of the product by which an effect is told; smaller ones oneDNN leaves to the BLAS, below about
# 200 on an AMD core and 400 on an Intel one
PROBE = 512


class MatmulPrecision(Knob):
    """On a GPU high and medium both mean TF32 (``at::Context::setFloat32MatmulPrecision``), and
    only high is offered.

    On a CPU only highest and medium are offered. Measured with torch 2.13 on an AMD core with
    avx512_bf16:

    "high" gives bit-equal results at equal speed; "medium" hands products from about 256 × 256 up
    to oneDNN and ran 1024 × 1024 in 4.3 ms instead of 9.7 ms, with an error still that of float32;
    on CPUs with amx_bf16 it rounds the inputs to bfloat16. Convolutions are not touched.
    """

    name = "matmul_precision"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True
    example = "high"
    range = "highest, high (CUDA), medium (CPU)"
    ordered = False
    card = Card(
        what=(
            "Lets float32 matrix products use faster units: high is TF32 on a GPU (inputs rounded"
            " to 10 bits), and so is medium. On a CPU medium hands large products to oneDNN; high"
            " does nothing there and is not tried."
        ),
        when_it_helps=(
            "float32 training with large matrix products: on GPUs from Ampere on, and on CPUs with"
            " avx512_bf16 or amx_bf16 (2.2 times faster for a 1024 × 1024 product on the AMD CPU it"
            " was tried on)."
        ),
        when_it_does_not=(
            "Under autocast, where products are not float32 any more; with small matrices; for"
            " convolutions, which have a switch of their own."
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
                "the job sets fp32_precision itself, which torch does not let be mixed with this"
                " switch"
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
        if not machine.cpu_flags.intersection(CPU_FLAGS):
            raise NotApplicable(
                "torch has no faster float32 product on this CPU (it needs"
                f" {' or '.join(CPU_FLAGS)})"
            )
        return ["highest", "medium"]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        return "high changes nothing on a CPU" if value == "high" and job.device == "cpu" else None

    def check_value(self, value: Value) -> str | None:
        return one_of(value, WORDS)

    def apply(self, live: LiveJob, value: Value) -> None:
        live.torch.set_float32_matmul_precision(value)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        try:
            now = live.torch.get_float32_matmul_precision()
        except RuntimeError:  # the job has since used the other set of switches
            return "the job sets fp32_precision itself"
        if now != value:
            return f"the job set the precision back to {now!r}"
        if live.device == "cpu" and value != "highest" and not _differs(live.torch, str(value)):
            return "float32 products give the same bits as before on this CPU"
        return None

    def snippet(self, value: Value) -> str:
        return f'torch.set_float32_matmul_precision("{value}")'


def _differs(torch: Any, value: str) -> bool:
    """Whether a product under ``value`` differs in any bit from the exact one. Draws no random
    numbers.
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
