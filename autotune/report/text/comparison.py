"""Compares two finished runs: what can be compared, and with what certainty.

    speed-ups       each has an interval from fresh processes, so their ratio gets one too
    absolute times  measured on different days: only as certain as the noise of both runs, if known

Runs on different hardware, with a different torch or command are unlike; that is checked first
(:func:`unlike`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune import words
from autotune.explain.records import Finding
from autotune.export.fingerprint import compared
from autotune.objectives import WHOLE_TRAINING
from autotune.report.text import gains, story
from autotune.results import Anatomy, Interval, Result

MOST_OPERATORS = 8  # rows, those that changed most


@dataclass(frozen=True)
class KnobRow:
    knob: str
    a: str
    b: str
    differ: bool


@dataclass(frozen=True)
class OperatorRow:
    """Estimated time per iteration in one operator: its profile share times the timed iteration."""

    name: str
    a_s: float
    b_s: float


@dataclass(frozen=True)
class Comparison:
    a: Result
    b: Result
    differences: tuple[str, ...]  # what makes them unlike; () if they are alike
    speedups: Interval | None  # speed-up of B over that of A
    # samples/s of the unchanged job, B over A; None: a rate or the noise of a run is unknown, or
    # the two were measured in different ways
    baselines: Interval | None
    tuned: Interval | None  # samples/s after tuning, B over A
    knobs: tuple[KnobRow, ...]
    operators: tuple[OperatorRow, ...]
    only_a: tuple[Finding, ...]
    only_b: tuple[Finding, ...]


def compare(a: Result, b: Result) -> Comparison:
    (own_a, after_a), (own_b, after_b) = ends(a), ends(b)
    noises = a.observation.noise, b.observation.noise
    alike = of_one_kind(a, b)
    return Comparison(
        a,
        b,
        tuple(unlike(a, b)),
        ratio_of_speedups(a.speedup, b.speedup),
        ratio_of_rates(own_a.samples_per_s, own_b.samples_per_s, *noises) if alike else None,
        ratio_of_rates(after_a.samples_per_s, after_b.samples_per_s, *noises) if alike else None,
        knob_rows(a, b),
        changed_operators(_times_s(a), _times_s(b)),
        *findings_apart(a, b),
    )


def planned_steps(result: Result) -> int | None:
    """Of the training that was planned; None: how long that takes is not known."""
    training = result.confirmation.training if result.confirmation else None
    return None if training is None else training.steps


def unlike(a: Result, b: Result) -> list[str]:
    """Differences in machine, software or job as text, in the terms `autotune launch` uses."""
    one, other = a.observation, b.observation
    devices = ["GPU" if o.job.device == "cuda" else "CPU" for o in (one, other)]
    objectives = [r.environment.get("objective", "throughput") for r in (a, b)]
    commands = [story.command_words(r) or "unknown" for r in (a, b)]
    facts = [
        ("job device", *devices),
        *compared(asdict(one.machine), other.machine, gpu=devices == ["GPU", "GPU"]),
        ("objective", *objectives),
        ("command", *commands),
        ("counted in", one.job.sample_unit, other.job.sample_unit),
    ]
    steps = [planned_steps(r) for r in (a, b)]
    if None not in steps and any(it in WHOLE_TRAINING for it in objectives):
        facts.append(("planned_steps", *(f"{it:,}" for it in steps)))
    return [
        f"{what}: {words.clean(in_a)} in A, {words.clean(in_b)} in B"
        for what, in_a, in_b in facts
        if in_a != in_b
    ]


def ends(result: Result) -> tuple[Anatomy, Anatomy]:
    """Anatomies of the job before and after tuning; equal if the baseline was kept."""
    before, after = story.anatomies(result)
    if after is None and result.confirmation is not None:  # from fresh processes, too
        before = result.confirmation.baseline_anatomy or before
    return before, after or before


def of_one_kind(a: Result, b: Result) -> bool:
    """Whether both runs' times are from fresh processes, or both from live sessions: the two differ
    for the same job.
    """
    fresh = [r.confirmation is not None and r.confirmation.baseline_anatomy for r in (a, b)]
    return bool(fresh[0]) == bool(fresh[1])


def ratio_of_speedups(a: Interval, b: Interval) -> Interval | None:
    """``b`` over ``a``; None if one was not measured.

    Their errors are independent, so they add in quadrature on the log scale.
    """
    if not all(words.measured(i) and min(i.low, i.estimate, i.high) > 0 for i in (a, b)):
        return None
    half = math.sqrt(sum((math.log(i.high / i.low) / 2) ** 2 for i in (a, b)))
    return _around(math.log(b.estimate) - math.log(a.estimate), half)


def ratio_of_rates(a: float, b: float, noise_a: float, noise_b: float) -> Interval | None:
    """Samples/s of ``b`` over ``a``, with an interval from both runs' noise.

    The noises are standard deviations of the log time. Each rate counts as a single draw of its
    noise, however many iterations it averages: the machine's state during a run affects all of
    them alike and does not average out.
    """
    if not all(words.known(x) and x > 0 for x in (a, b, noise_a, noise_b)):
        return None
    return _around(math.log(b) - math.log(a), words.Z95 * math.hypot(noise_a, noise_b))


def clear(interval: Interval) -> bool:
    """Whether the interval excludes 1, so there is a difference to report."""
    return interval.low > 1 or interval.high < 1


def knob_rows(a: Result, b: Result) -> tuple[KnobRow, ...]:
    """Every knob that either run changes, with its value in each after tuning."""
    names = dict.fromkeys([*a.knobs, *b.knobs])
    rows = []
    for name in names:
        values = [
            words.value_words(r.knobs.get(name, r.baseline.get(name, "not in the search")))
            for r in (a, b)
        ]
        said = [
            f"{value}{'' if name in r.knobs else ' (unchanged)' if name in r.baseline else ''}"
            for value, r in zip(values, (a, b), strict=True)
        ]
        rows.append(KnobRow(words.clean(name, 60), said[0], said[1], values[0] != values[1]))
    return tuple(rows)


def changed_operators(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[OperatorRow, ...]:
    """Operators whose time per iteration differs most; () if one side has none."""
    if not a or not b:
        return ()
    rows = [
        OperatorRow(words.clean(name, 80), a.get(name, 0.0), b.get(name, 0.0))
        for name in {**a, **b}
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.b_s - row.a_s))[:MOST_OPERATORS])


def _times_s(result: Result) -> dict[str, float]:
    """Operator -> estimated seconds per iteration of the job after tuning."""
    sides = result.explanation.sides
    side = sides.get("winner") if result.knobs else sides.get("baseline")
    iteration_s = ends(result)[1].iteration_s
    found: dict[str, float] = {}
    for row in side.operators if side is not None and words.known(iteration_s) else ():
        share = row.share if words.known(row.share) else 0.0
        found[row.name] = found.get(row.name, 0.0) + share * iteration_s
    return found


def findings_apart(a: Result, b: Result) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Findings still open after tuning in only one of the two runs.

    A finding whose line moved within the same function counts as the same.
    """
    if not all(r.explanation.rules or r.explanation.findings for r in (a, b)):
        return (), ()  # one run was never checked, so findings missing from it mean nothing
    return apart(a.explanation.findings, b.explanation.findings)


def apart(
    a: Sequence[Finding], b: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Open findings that are in only one of the two lists."""
    left, right = _standing(a), _standing(b)
    return tuple(f for key, f in left.items() if key not in right), tuple(
        f for key, f in right.items() if key not in left
    )


def _standing(findings: Sequence[Finding]) -> dict[tuple[str, str, str | int], Finding]:
    """Uncured findings by rule and place; of duplicates (baseline and winner) the first is kept."""
    found: dict[tuple[str, str, str | int], Finding] = {}
    for finding in findings:
        if not finding.cured:
            place = finding.place
            where: tuple[str, str | int] = (
                ("", "") if place is None else (Path(place.file).name, place.function or place.line)
            )
            found.setdefault((finding.rule, *where), finding)
    return found


def said_of_speedups(comparison: Comparison) -> str:
    """The opening sentence: which run gained more, if that is clear."""
    ratio = comparison.speedups
    if ratio is None:
        return "One of the two speed-ups was not measured, so they cannot be compared."
    figures, gain = words.interval_words(ratio), gains.gain_name(comparison.b)
    if not clear(ratio):
        return f"Neither run clearly gained more: B's {gain} is {figures} that of A."
    more = "B" if ratio.estimate > 1 else "A"
    return f"{more} gained more: B's {gain} is {figures} that of A."


def said_of_times(comparison: Comparison) -> list[str]:
    """What the absolute times show, and how far they can be trusted."""
    if not of_one_kind(comparison.a, comparison.b):
        return [
            "One run's times are from fresh processes and the other's from a live session, so no"
            " ratio of them is given."
        ]
    if comparison.baselines is None or comparison.tuned is None:
        return ["The noise of one of the runs is unknown, so no ratio of their times is given."]
    noises = " and ".join(f"{100 * r.observation.noise:.1f}%" for r in (comparison.a, comparison.b))
    said = []
    base = comparison.baselines
    if clear(base) and not comparison.differences:
        said.append(
            f"The unchanged job itself ran {words.interval_words(base)} as fast in B as in A: the"
            " machine, the data or the code differed. Compare the speed-ups, not the times."
        )
    else:
        tuned = comparison.tuned
        verb = "runs" if clear(tuned) else "is neither clearly faster nor slower: it runs"
        said.append(
            f"After tuning, B {verb} {words.interval_words(tuned)} as fast as A, in"
            f" {words.clean(comparison.a.observation.job.sample_unit)} per second."
        )
    return [
        *said,
        (
            f"Times from two runs are only as certain as the noise of both ({noises} between blocks"
            " of the unchanged job) and do not account for changes to the machine in between."
        ),
    ]


def _around(log: float, half: float) -> Interval:
    # exp overflows beyond 709, where only numbers of a damaged file lead
    return Interval(*(math.exp(min(log + side * half, 700.0)) for side in (0, -1, 1)))
