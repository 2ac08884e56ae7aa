"""Which torch kernel computes attention."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.facts import JobFacts, Machine

FUSED = ("flash", "efficient", "cudnn")
WORDS = ("default", *FUSED, "math")
SIXTEEN_BITS = ("flash", "cudnn")  # on CUDA these accept only float16 and bfloat16
CAPABILITY = (8, 0)  # first CUDA generation that runs them
MEMBERS = {  # of torch's SDPBackend
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


class SdpaBackend(Knob):
    name = "sdpa_backend"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True
    redraws = ("cpu", "cuda")
    example = "cudnn"
    allowed = WORDS
    range = "default, flash (CUDA), efficient (CUDA), cudnn (CUDA), math"
    card = Card(
        what=(
            "Which kernel computes scaled_dot_product_attention: FlashAttention,"
            " memory-efficient attention, cuDNN's, or math (plain matrix products). The"
            " one named is tried first; calls that it does not support fall back to the"
            " others."
        ),
        when_it_helps=(
            "Much of the time goes into attention, and torch's own choice is not the"
            " fastest for its shapes: before Hopper, for example, torch never picks"
            " cuDNN's kernel itself."
        ),
        when_it_does_not=(
            "Attention written by hand or by another library, which torch's choice does not"
            " affect. In float32 a GPU has one fused kernel (efficient), and with dropout a CPU"
            " has only math. math holds all attention scores in memory: on a GPU it is tried only"
            " if you name it."
        ),
        changes_loss=(
            "The kernels round differently, and each draws dropout in its own way. The"
            " loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "default"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if job.own_compile:
            raise NotApplicable(
                "the job compiles its model itself, which fixes the attention kernel"
            )
        if not job.attention:
            raise NotApplicable(
                "no call of scaled_dot_product_attention with a fused kernel was seen"
            )
        if job.device == "cpu":
            return ["default", "math"]
        if (
            self.values is None
            and not job.own_autocast
            and not set(SIXTEEN_BITS).intersection(job.attention)
        ):
            more = [v for v in SIXTEEN_BITS if self.unusable(v, machine, job) is None]
            named = f"sdpa_backend: [{', '.join(more)}]"
            raise NotApplicable(
                "the job's attention is in float32, for which torch has only one fused kernel"
                + (f"; under amp_dtype it has others: to have them tried, {named}" if more else "")
            )
        return [
            "default",
            *(v for v in FUSED if job.attention != (v,) and self.unusable(v, machine, job) is None),
        ]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if value in FUSED and job.device == "cpu":
            return "on a CPU torch uses flash wherever it can, and has no other fused kernel"
        if (
            value in SIXTEEN_BITS
            and job.device == "cuda"
            and machine.compute_capability < CAPABILITY
        ):
            gpu = machine.device_name or "this GPU"
            return f"{gpu} cannot run {value} attention (compute capability below 8.0)"
        return None

    def apply(self, live: LiveJob, value: Value) -> None:
        live.control("attention").set(None if value == "default" else str(value))

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return live.control("attention").effect() if value != "default" else None

    def snippet(self, value: Value) -> str:
        if value == "default":
            return ""
        order = (
            ["math"]
            if value == "math"
            else [str(value), *(v for v in ("flash", "efficient", "math") if v != value)]
        )
        members = ", ".join(f"SDPBackend.{MEMBERS[v]}" for v in order)
        return (
            "from torch.nn.attention import SDPBackend, sdpa_kernel\n\n"
            f"with sdpa_kernel([{members}], set_priority=True):\n    output = model(inputs)"
        )
