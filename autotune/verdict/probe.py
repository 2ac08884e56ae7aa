"""Check the first steps, before the loss can show anything: gradient norm, update norm, skipped
steps.

A gradient that is one step stale, a doubled learning rate or a lost gradient of the head barely
change an adaptive optimizer's loss for hundreds of steps, but show in the norms at once. The loss
alone misses about 12% of such defects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count
from statistics import fmean, stdev, variance

from autotune.verdict.runs import LossRun

PROBE_STEPS = 8
# share of the norm; statistical changes are not probed
PROBE_TOLERANCE = {"rounding": 0.05, "random-stream": 0.10}
# under another random stream the norms scatter: the mean must also exceed this many standard errors
PROBE_ERRORS = 3.0
SINGLE_STEP_PAIRS = 3  # fewest pairs that show the scatter of a single step between seeds
# share of the run's largest norm: below it, ratios are meaningless noise
NEGLIGIBLE_NORM = 1e-9

# the scale starts too high on purpose, above all for a summed loss, and is halved at each skip
FLOAT16_SETTLING_SKIPS = 12
FLOAT16_EARLY_STEPS = 10  # after the first step that is not skipped
FLOAT16_EARLY_SKIPS = 3
# later the scale is raised every 2000 steps; more skips than this mean overflow in the model
FLOAT16_LATE_SHARE = 0.01


def probe(
    baselines: Mapping[int, LossRun], candidates: Mapping[int, LossRun], numerics: str
) -> str | None:
    """Why the first steps of the candidates differ from the baselines' (same seeds), or None.

    rounding: root mean square over steps of the seed-mean log ratio, so that ratios that cancel
    over steps still count. random-stream: mean over seeds and steps, which other dropout masks or
    crops do not shift; with three pairs or more also each step by itself, because the effect of a
    stale gradient shows in one step and fades.
    """
    tolerance = PROBE_TOLERANCE.get(numerics)
    if tolerance is None:
        return None
    # parameters lag behind by the skipped steps
    delayed = any(run.skipped for run in candidates.values())
    by_mean = numerics != "rounding" or delayed
    limit = math.log1p(PROBE_TOLERANCE["random-stream"] if by_mean else tolerance)
    for name in ("gradient_norms", "update_norms"):
        what = name.replace("_norms", " norm")
        columns: dict[int, list[float]] = {}
        for seed in baselines.keys() & candidates.keys():
            ratios = _log_ratios(baselines[seed], candidates[seed], name)
            if isinstance(ratios, str):
                return ratios
            for step, ratio in ratios.items():
                columns.setdefault(step, []).append(ratio)
        if not columns:
            continue
        values = [r for column in columns.values() for r in column]
        single = None if not by_mean or delayed else _single_step(columns, limit)
        if single is not None:
            return (
                f"the {what} of step {single[0] + 1} differs by {math.expm1(abs(single[1])):.0%} "
                f"(allowed {math.expm1(limit):.0%})"
            )
        if by_mean:
            size = fmean(values)
            error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            differs = abs(size) > limit and abs(size) > PROBE_ERRORS * error
            how = "on average"
        else:
            size = math.sqrt(fmean(fmean(column) ** 2 for column in columns.values()))
            differs, how = size > limit, "typically"
        if differs:
            return (
                f"in the first {len(columns)} steps the {what} differs {how} by"
                f" {math.expm1(abs(size)):.0%} (allowed {math.expm1(limit):.0%})"
            )
    return None


def _single_step(columns: Mapping[int, list[float]], limit: float) -> tuple[int, float] | None:
    """(step, mean log ratio) of the first step whose difference exceeds the limit plus its scatter
    between seeds; None if there is none.

    The scatter of one step is poorly known from few seeds, so at least the mean scatter of all
    steps is used.
    """
    full = {step: ratios for step, ratios in columns.items() if len(ratios) >= SINGLE_STEP_PAIRS}
    if not full:
        return None
    pooled = fmean(variance(ratios) for ratios in full.values())
    for step, ratios in sorted(full.items()):
        error = math.sqrt(max(pooled, variance(ratios)) / len(ratios))
        if abs(fmean(ratios)) > limit + PROBE_ERRORS * error:
            return step, fmean(ratios)
    return None


def _log_ratios(baseline: LossRun, candidate: LossRun, name: str) -> dict[int, float] | str:
    """step -> log(candidate / baseline), or what is wrong if no ratio can describe it."""
    left, right = getattr(baseline, name)[:PROBE_STEPS], getattr(candidate, name)[:PROBE_STEPS]
    out = set(baseline.skipped) | set(candidate.skipped)
    floor = NEGLIGIBLE_NORM * max((x for x in (*left, *right) if math.isfinite(x)), default=0.0)
    what = name.replace("_norms", " norm")
    ratios = {}
    for step, (a, b) in enumerate(zip(left, right, strict=False)):
        if step in out or not math.isfinite(a) or max(a, b) <= floor:
            continue
        if not math.isfinite(b):
            return f"the {what} becomes {b} at step {step + 1}"
        if min(a, b) <= floor:
            return f"the {what} is {b:.3g} instead of {a:.3g} at step {step + 1}"
        ratios[step] = math.log(b / a)
    return ratios


def float16_fault(candidates: Mapping[int, LossRun]) -> str | None:
    """Why float16's skipped steps or its first gradient look unhealthy, or None."""
    for run in candidates.values():
        skipped = set(run.skipped)
        settling = next(step for step in count() if step not in skipped)
        until = settling + FLOAT16_EARLY_STEPS
        early = sum(settling < step < until for step in skipped)
        if max(early, settling - FLOAT16_SETTLING_SKIPS) > FLOAT16_EARLY_SKIPS:
            return (
                f"{settling + early} of the first {until} steps were skipped for overflow (at most"
                f" {FLOAT16_SETTLING_SKIPS} in a row, then {FLOAT16_EARLY_SKIPS}, are normal)"
            )
        late = len(skipped) - settling - early
        allowed = 1 + FLOAT16_LATE_SHARE * run.steps
        if late > allowed:
            return (
                f"{late} of {run.steps} steps were skipped for overflow after the scale had settled"
            )
        error, allowed_error = run.gradient_error, run.gradient_error_allowed
        if error is not None and allowed_error is not None and error > allowed_error:
            return (
                f"the first gradient differs from float32's by {error:.2g}, bfloat16's by"
                f" {allowed_error:.2g}: small gradients underflow in float16"
            )
    return None
