"""The number format of the forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import BFLOAT16_FLAGS
from autotune_spaces.facts import JobFacts, Machine

WORDS = ("off", "bfloat16", "float16")
BFLOAT16_CAPABILITY = (8, 0)  # first CUDA generation whose tensor cores have bfloat16
CASTABLE = ("Linear", "Bilinear", "Conv", "LSTM", "GRU", "RNN", "MultiheadAttention", "Transformer")


class AmpDtype(Knob):
    name = "amp_dtype"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True
    # 16-bit attention uses another kernel there, and dropout vectorizes differently
    redraws = ("cuda",)
    example = "bfloat16"
    allowed = WORDS
    range = "off, bfloat16, float16 (CUDA)"
    card = Card(
        what=(
            "Runs the forward pass under torch.autocast: matrix products and convolutions"
            " in 16 bits, sums and losses in 32. float16 also scales the loss so that"
            " small gradients do not underflow, and skips steps that overflow."
        ),
        when_it_helps=(
            "Much of the time goes into matrix products or convolutions, and the hardware"
            " supports the format: any recent GPU, CPUs with avx512_bf16 or amx_bf16."
        ),
        when_it_does_not=(
            "Small models, where the casts cost more than they save. float16 on a CPU is"
            " many times slower and is never tried; on a GPU it waits for the device once"
            " per step, unless the optimizer is fused."
        ),
        changes_loss=(
            "It rounds differently (bfloat16 has 8 significant bits, float16 has 11 but a"
            " small range), and on a GPU dropout draws different random numbers. Most"
            " models train the same; the loss check decides."
        ),
        source="https://docs.pytorch.org/docs/stable/amp.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "off"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if job.own_autocast:
            raise NotApplicable(f"the job uses its own autocast ({job.own_autocast})")
        if job.own_scaler:
            raise NotApplicable("the job uses its own GradScaler")
        if job.double_precision:
            raise NotApplicable("the job trains in float64, which autocast does not cast")
        if job.unsafe_to_autocast and job.device == "cuda":
            raise NotApplicable(
                f"the loss uses {job.unsafe_to_autocast}, which autocast refuses on CUDA; with"
                " binary_cross_entropy_with_logits (BCEWithLogitsLoss) it can be tuned"
            )
        return WORDS

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if not job.models and job.loader is None:
            return (
                "the job calls no module in training and has no DataLoader, so it is"
                " unknown where its forward pass begins"
            )
        if value == "float16":
            if job.device != "cuda":
                return (
                    "float16 is only for CUDA (on a CPU it is many times slower), and the job"
                    f" trains on {job.device}"
                )
            if job.double_backward:
                return (
                    "the job differentiates twice (backward with create_graph=True),"
                    " which float16's loss scaling does not support"
                )
            if job.early_gradients:
                return (
                    "the job has hooks on its parameters, a backward in two parts, or gradients in"
                    " tensors that no optimizer has (its inputs, say), where float16's loss scaling"
                    " would show"
                )
            if job.world_size > 1 and not job.ddp:
                return (
                    "without DistributedDataParallel each rank sees only its own"
                    " gradients, but with float16 all ranks must skip the same steps"
                )
        if value == "bfloat16":
            if machine.device_count > 1 and any(m.name == "DataParallel" for m in job.models):
                return "nn.DataParallel's threads take CUDA's own dtype for autocast, float16"
            if job.device == "cpu" and not machine.cpu_flags.intersection(BFLOAT16_FLAGS):
                return f"this CPU has no bfloat16 instructions ({' or '.join(BFLOAT16_FLAGS)})"
            if job.device == "cuda" and machine.compute_capability < BFLOAT16_CAPABILITY:
                return (
                    f"{machine.device_name or 'this GPU'} has no bfloat16 units (compute capability"
                    " below 8.0)"
                )
        return None

    def apply(self, live: LiveJob, value: Value) -> None:
        live.control("autocast").set(None if value == "off" else str(value))

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if value == "off":
            return None
        if not live.entries:
            return live.control("autocast").effect()
        modules = [m for entry in live.entries for m in entry.module.modules()]
        if not any(part in type(m).__name__ for m in modules for part in CASTABLE):
            # Products may still be called as functions: look for matrices among the parameters.
            if not any(p.dim() >= 2 for m in modules for p in m.parameters(recurse=False)):
                return "the model has no matrix product or convolution that autocast would cast"
        dtypes = {
            str(p.dtype).removeprefix("torch.")
            for m in modules
            for p in m.parameters(recurse=False)
        }
        if dtypes and dtypes <= {"bfloat16", "float16"}:
            return (
                f"the parameters are already {' and '.join(sorted(dtypes))}, so autocast has"
                " nothing to cast"
            )
        if dtypes == {"float64"}:
            return "the parameters are float64, which autocast does not cast"
        return live.control("autocast").effect()

    def snippet(self, value: Value) -> str:
        if value == "off":
            return ""
        body = (
            "with torch.autocast(device.type, dtype=torch.{}):\n    loss ="
            " loss_function(model(inputs), targets)\n"
        )
        if value == "bfloat16":
            return body.format(value) + "loss.backward()\noptimizer.step()"
        return (
            'scaler = torch.amp.GradScaler("cuda")  # once, before the loop\n'
            + body.format(value)
            + "scaler.scale(loss).backward()\nscaler.unscale_(optimizer)  # before"
            " clipping\nscaler.step(optimizer)\nscaler.update()"
        )
