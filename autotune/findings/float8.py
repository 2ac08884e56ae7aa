"""Matrix products large enough for float8."""

from __future__ import annotations

from autotune.explain.records import Finding, Operator
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import dimensions, half_dtype, iteration_s, products_s

CAPABILITY = (9, 0)  # Hopper: what float8 training is written for
# Smallest allowed dimension. Scaling and casting pass over the operands once, so their share
# shrinks as products grow: a GPT of 1.5 B parameters, 1,600 wide, was reported to gain 2% on an
# H100 (pytorch/ao issue 1297), one of 8 B, 4,096 wide, 25% (torchao).
LEAST = 2048
SHARE = 0.4  # of an iteration: at twice the speed, the most float8 can give, 1.25x


class Float8(Rule):
    name = "float8"
    title = "Large matrix products in 16 bits"
    card = (
        f"On a Hopper or later GPU, 16-bit matrix products with no dimension below {LEAST}"
        f" take at least {SHARE:.0%} of an iteration: large enough for float8, whose Tensor"
        " cores are twice as fast. The saving is unknown until it is tried, so no cost is"
        " given. This is advice, not a knob: float8 changes the training trajectory and needs"
        " special layers. Source: https://docs.pytorch.org/ao/stable/workflows/training.html."
    )

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU: there are no Tensor cores")
        if tuple(case.machine.compute_capability) < CAPABILITY:
            raise NotJudgeable(f"{case.machine.device_name} is older than Hopper")
        if not half_dtype(case):
            raise NotJudgeable("the job computes in float32; try bfloat16 first")
        whole, (rows, time_s) = iteration_s(case), products_s(case, _large)
        if not rows or time_s < SHARE * whole:
            return []
        evidence = (
            f"{rows[0].name} {rows[0].shapes} and products like it take"
            f" {of_iteration(time_s, whole)} in 16 bits. float8 saves at most half of that."
        )
        advice = (
            "Use torchao.float8.convert_to_float8_training(model) with torch.compile, or"
            " Transformer Engine's layers; leave out small layers and the last one, and compare the"
            " loss: the training trajectory changes."
        )
        return [self.finding(case, evidence, advice)]


def _large(row: Operator) -> bool:
    # tensors with more dimensions belong to attention's own products, which stay in 16 bits
    matrices = [shape for shape in dimensions(row.shapes) if len(shape) == 2]
    large = len(matrices) >= 2 and all(min(shape) >= LEAST for shape in matrices)
    return large and "conv" not in row.name
