"""Shapes that Tensor cores handle badly."""

from __future__ import annotations

from autotune.explain.records import Finding, Operator
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.measures import dimensions, half_dtype, iteration_s, products_s
from autotune.findings.no_tensor_cores import COST_SHARE, large

# every dimension should be one, in half precision: NVIDIA, "Deep Learning Performance: Matrix
# Multiplication Background", table 1
MULTIPLE = 8


class OddDimensions(Rule):
    name = "odd-dimensions"
    title = "Dimensions not divisible by 8"
    card = (
        "Under half precision on a GPU, products with a dimension that is not a multiple of"
        f" {MULTIPLE} take at least {COST_SHARE:.0%} of an iteration. The saving is unknown until"
        ' padding is tried, so no cost is given. Source: NVIDIA, "Matrix Multiplication'
        ' Background": Tensor cores are most efficient if all dimensions are multiples of 16 bytes.'
    )

    def judge(self, case: Case) -> list[Finding]:
        if not case.on_device:
            raise NotJudgeable("the job computes on the CPU: there are no Tensor cores")
        if not half_dtype(case):
            raise NotJudgeable("the job computes in float32; the rule is about half precision")
        whole, (rows, time_s) = iteration_s(case), products_s(case, _slow)
        if not rows or time_s < COST_SHARE * whole:
            return []
        evidence = (
            f"{rows[0].name} {rows[0].shapes} has dimensions that are not multiples of {MULTIPLE}"
            f" ({', '.join(map(str, _odd(rows[0])))}); such products take"
            f" {of_iteration(time_s, whole)}. The saving from padding was not measured."
        )
        advice = (
            "Pad these dimensions (vocabulary, classes, channels, sequence) to the next multiple"
            f" of {MULTIPLE}, preferably of 64."
        )
        return [self.finding(case, evidence, advice)]


def _slow(row: Operator) -> bool:
    half = {"bfloat16", "float16"} & {*row.dtypes.split()}
    return bool(half and large(row) and _odd(row))


def _odd(row: Operator) -> list[int]:
    """The dimensions that slow Tensor cores down.

    The last two of matrices; the channels of a convolution's input and result.
    """
    shapes = [shape for shape in dimensions(row.shapes) if len(shape) >= 2]
    if "conv" in row.name:  # the kernel, which is last, has the channels of its input and result
        sizes = [shape[1] for shape in shapes[:-1]]
    else:
        sizes = [n for shape in shapes for n in shape[-2:]]
    return list(dict.fromkeys(n for n in sizes if n % MULTIPLE))
