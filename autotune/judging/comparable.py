"""Runs each side once, briefly: are A and B the same work?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from autotune.errors import BaselineError, HookError, InputError
from autotune.executors.base import SessionFailed
from autotune.judging.sides import Side
from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.stages.explain import profiled
from autotune.stages.observe import explain_failure
from autotune.stages.profile import observed
from autotune_spaces.codec import decode, encode

# relative: windows of different lengths hold different parts of an epoch, whose batches may vary
SAME_BATCH = 0.05


@dataclass(frozen=True)
class Observed:
    observation: Observation
    samples: float  # per iteration
    peak_gib: float


def compare_sides(
    contexts: Mapping[str, RunContext], sides: tuple[Side, Side]
) -> dict[str, Observed]:
    """Profile each side briefly, and refuse unlike sides before time is spent.

    Raises:
        InputError: another device, other data, another batch size, other ranks.
    """
    found: dict[str, Observed] = {}
    for side in sides:
        context = contexts[side.name]
        stored = context.journal.find("side", side.name)
        if stored is None:
            context.progress.stage("observe", f"{side.name}: {side.what}")
            try:  # made again: without its `side` entry, an observation is unfinished
                record = profiled(context, side.name, side.knobs, anew=True)
            except SessionFailed as failure:
                raise error_of_side(context, side, failure) from failure
            hello = context.executor.last_hello
            assert hello is not None
            window = record.window
            it = Observed(
                observed(context, hello, record), median(window.samples), window.peak_memory_gib
            )
            context.journal.append("side", side.name, encode(it))
            context.stop.check()
        else:
            it = decode(Observed, stored)
        found[side.name] = it
    if unlike := _unlike(found["A"], found["B"]):
        raise InputError(
            f"the sides cannot be compared: {unlike}",
            where=f"A: {sides[0].what}; B: {sides[1].what}",
            expected="the same work: data, batch size, device and number of processes",
            remedy="judge one change at a time; `autotune run` tunes the batch size",
        )
    return found


def error_of_side(
    context: RunContext, side: Side, failure: SessionFailed | BaselineError | HookError
) -> BaselineError | HookError:
    """Turn ``failure`` into an error of that side, with its command."""
    cause = failure if isinstance(failure, SessionFailed) else failure.__cause__
    where = side.command
    if isinstance(cause, SessionFailed):
        error = explain_failure(context, cause, "the job")
        where = error.where
    else:
        assert not isinstance(failure, SessionFailed)
        error = failure
    return type(error)(
        f"{side.name}, {side.what}: {error.found}",
        where=where,
        expected=error.expected,
        remedy=error.remedy,
    )


def _unlike(a: Observed, b: Observed) -> str:
    """What differs in the work itself, in words; "": nothing."""
    jobs = a.observation.job, b.observation.job
    facts: list[tuple[str, object, object]] = [
        ("device", jobs[0].device, jobs[1].device),
        ("processes", jobs[0].world_size, jobs[1].world_size),
    ]
    if not math.isclose(a.samples, b.samples, rel_tol=SAME_BATCH):
        facts.append(("samples per iteration", a.samples, b.samples))
    if jobs[0].loader and jobs[1].loader:
        facts.append(("samples in the data set", jobs[0].loader.samples, jobs[1].loader.samples))
    return "; ".join(f"{name}: {x} in A, {y} in B" for name, x, y in facts if x != y)
