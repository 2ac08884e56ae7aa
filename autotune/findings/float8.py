"""Matrix products large enough for float8."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import compute_s, dimensions, half_dtype, is_product, iteration_s

CAPABILITY = (9, 0)  # Hopper: what float8 training is written for
# Of every dimension. Scaling and casting go over the operands once, so they weigh the less the
# larger a product is: a GPT of 1.5 B parameters, 1,600 wide, was reported to gain 2 % on an H100
# (pytorch/ao issue 1297), one of 8 B, 4,096 wide, 25 % (torchao).
LEAST = 2048
SHARE = 0.4  # of an iteration: at twice the speed, which nothing exceeds, 1.25x


class Float8(Rule):
    name = "float8"
    title = "Large matrix products in 16 bits"
    card = (
        "On a GPU of Hopper's generation or later, 16-bit matrix products with no dimension below"
        f" {LEAST} take at least {SHARE:.0%} of an iteration: large enough for float8, whose Tensor"
        " cores are twice as fast. What is saved is not known before it is tried, so no cost is"
        " given. It is advice and no knob, since float8 is another training trajectory and needs"
        " layers of its own. Source: https://docs.pytorch.org/ao/stable/workflows/training.html."
    )

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU: there are no Tensor cores")
        if tuple(case.machine.compute_capability) < CAPABILITY:
            raise NotJudgeable(f"{case.machine.device_name} is older than Hopper")
        if not half_dtype(case):
            raise NotJudgeable("the job computes in float32; bfloat16 comes first")
        whole, computing = iteration_s(case), compute_s(case)
        rows = [
            row
            for row in case.operators
            if is_product(row) and "conv" not in row.name and _large(dimensions(row.shapes))
        ]
        time_s = sum(row.share for row in rows) * computing
        if not rows or time_s < SHARE * whole:
            return []
        rows.sort(key=lambda row: -row.self_time_s)
        evidence = (
            f"{rows[0].name} {rows[0].shapes} and products like it take"
            f" {of_iteration(time_s, whole)} in 16 bits. At most half of that is saved in float8."
        )
        advice = (
            "torchao.float8.convert_to_float8_training(model) together with torch.compile, or"
            " Transformer Engine's layers; leave out small layers and the last one, and compare the"
            " loss: this is another training trajectory."
        )
        return [self.finding(case, evidence, advice)]


def _large(shapes: list[list[int]]) -> bool:
    # of more dimensions: attention's own products, which stay in 16 bits
    matrices = [shape for shape in shapes if len(shape) == 2]
    return len(matrices) >= 2 and all(min(shape) >= LEAST for shape in matrices)
