"""The roofline of an operator: the least time its FLOPs and bytes need here, and what it took.

                 peak of its type ─────────────────   compute-bound: the arithmetic needs longer than the memory
    FLOP/s      ╱
               ╱ ← bandwidth · intensity              memory-bound: the memory needs longer than the arithmetic
              ╱
             └──────────── FLOP per byte ──────────   overhead-bound: the call itself needs longer than its work

    ideal = max(FLOPs / peak, bytes / bandwidth)      Williams, Waterman, Patterson: Roofline, CACM 52 (2009) 65

Pure functions of numbers. The peaks are measured (:mod:`autotune_trials.measure.peaks`), and so is
``dispatch``, the time of a call that does nothing. Where ``dispatch`` is above ``ideal``, most of
the least possible time of a call is not its work. Such a call is overhead-bound if it took at least
``SLOWER`` times its ideal, because it then neither computes nor moves data for most of its time. On
a device, times are those of kernels, and ``dispatch`` is the time between two launches: only
kernels shorter than that leave the device waiting for the next launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.explain.flops import PRODUCTS_INSIDE, hands_on
from autotune.explain.records import Operator
from autotune.words import duration_words, scaled_words

# from twice the ideal on, at least half of the call is not its work
SLOWER = 2.0
# start of the reason in the rows of operators whose work is done by others
HANDED_ON = "the work is done, and counted, by the"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
# per call; below it, reading the profiler's clock is a noticeable part of the figure
SHORTEST_S = 50e-6
# above the roof by more than the error allowed in a measured peak (15%): the data were in a cache
CACHED = 1.15

ABOVE = {
    "cache": "its data were in a cache, or it writes in place",
    "fewer products": (
        "its algorithm needs fewer products than are counted (Winograd, attention under a causal"
        " mask), or computes them in a lower precision"
    ),
}


@dataclass(frozen=True)
class Roof:
    """What limits operators of one type."""

    flops_per_s: float
    bytes_per_s: float
    dispatch_s: float  # of a call that does nothing
    dtype: str  # whose peak is used: "float32", "tf32", "bfloat16", "float16"


def roof_for(dtypes: str, peaks: Mapping[str, float], tf32: bool = False) -> Roof | None:
    """The roof for operands of these types (as :attr:`Operator.dtypes`); None if not measured.

    The type is that of the first floating-point operand. Types without a peak of their own
    (float64, integers) use float32's.
    """
    if not peaks.get("memory") or not peaks.get("float32"):
        return None
    dtype = next((d for d in dtypes.split() if d in ("bfloat16", "float16", "float32")), "float32")
    if dtype == "float32" and tf32 and peaks.get("tf32"):
        dtype = "tf32"
    if not peaks.get(dtype):
        dtype = "float32"
    return Roof(peaks[dtype], peaks["memory"], peaks.get("dispatch", 0.0), dtype)


def judged(
    rows: Sequence[Operator], peaks: Mapping[str, float], tf32: bool = False
) -> tuple[Operator, ...]:
    """Every row with its verdict.

    ``tf32``: whether float32 products may use TF32. Convolutions may wherever the device can, by
    torch's default.
    """
    return tuple(
        judge(row, roof_for(row.dtypes, peaks, tf32 or "conv" in row.name)) for row in rows
    )


def judge(row: Operator, roof: Roof | None) -> Operator:
    """The row with what bounds it, how far it is from the roof, and why, in a sentence."""
    if row.flops is None or row.nbytes is None:
        delegates = hands_on(row.name) or row.why.startswith(HANDED_ON)
        if delegates and row.self_time_s > 0 and PRODUCTS_INSIDE not in row.why:
            return replace(
                row,
                bound="overhead",
                why=_sentence(row.why or "it only calls other operators")
                + " Its own time is dispatch.",
            )
        return replace(row, why=_sentence(f"not judged: {row.why}" if row.why else "not judged"))
    if row.mean_s <= 0:
        return replace(row, why="Not judged: it took no time of its own.")
    if row.flops == 0 and row.nbytes == 0:
        return replace(
            row,
            bound="overhead",
            why=f"It moves and computes nothing; a call takes {duration_words(row.mean_s)}.",
        )
    achieved = row.flops / row.mean_s if row.flops else row.nbytes / row.mean_s
    if roof is None:
        return replace(
            row, achieved=achieved, why="Not judged: the peaks of this machine were not measured."
        )
    compute_s, memory_s = row.flops / roof.flops_per_s, row.nbytes / roof.bytes_per_s
    ideal_s = max(compute_s, memory_s)
    of_roof = ideal_s / row.mean_s
    needed = " and ".join(
        scaled_words(v, u) for v, u in ((row.flops, "FLOP"), (row.nbytes, "B")) if v
    )
    took = f"a call takes {duration_words(row.mean_s)}, its {needed} need {duration_words(ideal_s)}"
    # kernels that run longer than a launch takes do not wait for launches
    launched = row.self_device_s > 0 and row.mean_s >= roof.dispatch_s
    if ideal_s < roof.dispatch_s and row.mean_s >= SLOWER * ideal_s and not launched:
        why = (
            f"{took}: less than the {duration_words(roof.dispatch_s)} that calling any operator"
            " takes here."
        )
        return replace(
            row, achieved=achieved, bound="overhead", of_roof=min(of_roof, 1.0), why=_capital(why)
        )
    bound = "compute" if compute_s >= memory_s else "memory"
    what = f"at the {roof.dtype} peak" if bound == "compute" else "at the memory's bandwidth"
    why = f"{took} {what}: {100 * min(of_roof, 1.0):.0f}% of the roof."
    above = ""
    if of_roof > CACHED:
        above = "cache" if bound == "memory" else "fewer products"
        why += f" It exceeds the roof: {ABOVE[above]}."
    return replace(
        row,
        achieved=achieved,
        bound=bound,
        of_roof=min(of_roof, 1.0),
        why=_capital(why),
        above=above,
    )


def raised(
    peaks: Mapping[str, float], rows: Sequence[Operator], tf32: bool = False
) -> dict[str, float]:
    """``peaks``, none of them below what a matrix product in ``rows`` reached.

    This machine really did all of that product's FLOPs. Nothing else raises a peak. A convolution
    may need fewer products than are counted; operators on lists and in place move fewer bytes; and
    float32 products that may run at lower precision (``tf32``, where it has no peak of its own) say
    nothing about float32.
    """
    found = dict(peaks)
    for row in rows if "tf32" in peaks or not tf32 else ():
        roof = roof_for(row.dtypes, peaks, tf32)
        if row.name in PRODUCTS and row.flops and roof and row.mean_s >= SHORTEST_S:
            found[roof.dtype] = max(found[roof.dtype], row.flops / row.mean_s)
    return found


def _sentence(text: str) -> str:
    return _capital(text if text.endswith((".", "…")) else f"{text}.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
