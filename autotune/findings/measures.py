"""What many rules ask of a case: times of an iteration and its phases, and places."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from autotune.explain.records import Operator
from autotune.findings.base import Case, NotJudgeable
from autotune_spaces.codec import decode
from autotune_trials.protocol.evidence import Place

CAP = 2.0  # times the median: longer times are outliers
NAMED_SHARE = 0.1  # of the costliest line: cheaper ones are not named
NAMED = 3  # lines named by one finding
COMPUTE = ("forward", "backward", "optimizer", "other")  # phases in which operators run

PRODUCTS = frozenset(
    """
        mm addmm bmm baddbmm matmul linear convolution _convolution cudnn_convolution
        convolution_backward cudnn_convolution_backward _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention
    """.split()
)


def iteration_s(case: Case) -> float:
    """Mean seconds of a watched iteration.

    Raises:
        NotJudgeable: no iteration was watched.
    """
    if not case.evidence.times_s:
        raise NotJudgeable("; ".join(case.evidence.blind.values()) or "no iteration was watched")
    return fmean(case.evidence.times_s)


def need(case: Case, *watched: str) -> None:
    """Require that the agent watched what a rule looks at.

    Raises:
        NotJudgeable: it did not; with the agent's reason.
    """
    for name in ("everything", *watched):
        if name in case.evidence.blind:
            raise NotJudgeable(case.evidence.blind[name])


def phase_s(case: Case, *phases: str) -> float:
    """Mean seconds per iteration in ``phases``.

    Raises:
        NotJudgeable: phases were not recorded.
    """
    times = case.evidence.phase_times_s
    if not times:
        raise NotJudgeable("the phases of the iterations were not recorded")
    return sum(fmean(times[phase]) for phase in phases if times.get(phase))


def usual_s(times: Sequence[float], group: int = 1) -> float:
    """Mean of ``times``, one per iteration, with outliers capped: single slow iterations do not count.

    Times are taken ``group`` at a time (workers deliver in rounds: one long wait, then none), and
    no group counts for more than ``CAP`` times the median group.
    """
    group = max(1, min(group, len(times) // 4))
    sums = [sum(times[i : i + group]) for i in range(0, len(times) - group + 1, group)]
    if not sums:
        return 0.0
    top = CAP * median(sums)
    return fmean(min(s, top) for s in sums) / group


def place_of(data: Mapping[str, Any] | None) -> Place | None:
    """A place from the agent's plain data."""
    return decode(Place, data) if data else None


def loader_place(case: Case) -> Place | None:
    """Where the training DataLoader is built."""
    return place_of(case.evidence.loader.get("place"))


def costliest_lines(case: Case, *phases: str) -> list[tuple[Place, float]]:
    """(place, total seconds) of the job's own lines where its thread was seen most in ``phases``."""
    seconds: dict[Place, float] = {}
    for frame in case.evidence.frames:
        if frame.phase in phases and frame.place.own:
            seconds[frame.place] = seconds.get(frame.place, 0.0) + frame.seconds
    return sorted(seconds.items(), key=lambda item: -item[1])[:NAMED]


def compute_s(case: Case) -> float:
    """Seconds per iteration in which operators run: the whole for their shares of the profile.

    The profiler makes every call slower, so its own times are not taken for the job's.

    Raises:
        NotJudgeable: phases were not recorded, or there is no profile.
    """
    if not case.operators:
        raise NotJudgeable("there is no operator table")
    if case.on_device and case.side.idle_share is not None:
        return iteration_s(case) * (1.0 - case.side.idle_share)
    return phase_s(case, *COMPUTE)


def half_dtype(case: Case) -> str:
    """ "bfloat16" or "float16" if autocast or the parameters have that type, else ""."""
    chosen = str(case.config.get("amp_dtype", "off"))
    if chosen != "off":
        return chosen
    if case.job.own_autocast:
        return case.job.own_autocast
    dtypes = {str(d) for model in case.evidence.models for d in model.get("dtypes", ())}
    return next((d for d in ("bfloat16", "float16") if d in dtypes), "")


def dimensions(shapes: str) -> list[list[int]]:
    """The shapes of an operator's tensors, as lists of numbers."""
    return [
        [int(n) for n in re.findall(r"\d+", shape)]
        for shape in re.findall(r"\[([\d, ]+)\]", shapes)
    ]


def is_product(row: Operator) -> bool:
    """A matrix product or a convolution, forward or backward: what Tensor cores are for."""
    return row.name.removeprefix("aten::") in PRODUCTS


def products_s(case: Case, wanted: Callable[[Operator], bool]) -> tuple[list[Operator], float]:
    """The ``wanted`` products, costliest first, and their seconds per iteration."""
    computing = compute_s(case)
    rows = [row for row in case.operators if is_product(row) and wanted(row)]
    rows.sort(key=lambda row: -row.self_time_s)
    return rows, sum(row.share for row in rows) * computing


def at(place: Place) -> str:
    """``train.py:12``"""
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"
