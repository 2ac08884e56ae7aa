"""Iterations that take longer than the others, at regular intervals.

    time of an iteration     ▁▁▁▁▂▁▁▁█▁▁▁▂▁▁▁▁▁▁█▁▁▁▁▁▁▁▁▂█     every 10th: a Stall with period 10

What counts is the time of an iteration without waiting for batches (loader-bound) and garbage
collection (gc-pauses), plus file writes between iterations. To decide which iterations are slow,
the time in which the thread waited for a core is subtracted, too.

Evaluation and the turnover between epochs are part of a job and no stall, unless files are written
in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from autotune_trials.protocol.evidence import Calls, Evidence, Place

SLOW_SHARE = 0.25  # above the median, as a share of it, and
# robust standard deviations (1.4826 MAD) above it: both make an iteration slow. A normal
# distribution exceeds this once in 1e9. An iteration that writes files for the first share is slow
# however much the others scatter
SLOW_DEVIATIONS = 6.0
LEAST_PERIOD = 3  # every second iteration is a rhythm of the training itself (GANs, accumulation)
LEAST_SEEN = 3  # times before it counts as a pattern
RHYTHM_SHARE = 0.8  # share of the iterations due in a period that must be slow
MOST = 3  # periods reported
COVERED_SHARE = 0.5  # share of the slow iterations' total excess that a period must hold
# of the iterations: if more are slow, that is the training itself
MOST_SHARE = 0.4


@dataclass(frozen=True)
class Stall:
    """Slow iterations that belong together."""

    period: int
    iterations: tuple[int, ...]
    cost_s: float  # of one of them, beyond the usual iteration
    amortised_s: float  # per iteration, over all iterations


def working_s(evidence: Evidence, queued: bool = False) -> list[float]:
    """Seconds of each iteration in which a stall may hide, as described above.

    ``queued``: include the time in which the thread had no core.
    """
    times = list(evidence.times_s)
    for index, seconds in enumerate(evidence.phase_times_s.get("data", ())):
        times[index] -= seconds
    for index, seconds in enumerate(() if queued else evidence.queued_s):
        times[index] -= seconds
    for pause in evidence.pauses:
        if pause.iteration < len(times):
            times[pause.iteration] -= pause.seconds
    for calls in evidence.calls:
        if calls.kind == "file_write" and calls.phase == "away":
            for index, seconds in zip(calls.iterations, calls.each_s):
                if index < len(times):
                    times[index] += seconds
    return [max(0.0, seconds) for seconds in times]


def writing_iterations(evidence: Evidence, times: Sequence[float]) -> frozenset[int]:
    """Iterations that spend much of the usual time writing files; none if most do: that is the
    training itself.
    """
    spent: Counter[int] = Counter()
    for calls in evidence.calls:
        if calls.kind == "file_write":
            for index, seconds in zip(calls.iterations, calls.each_s):
                spent[index] += seconds  # type: ignore[assignment]
    bar = SLOW_SHARE * median(times) if times else 0.0
    found = frozenset(i for i, seconds in spent.items() if seconds > bar and i < len(times))
    return found if len(found) <= MOST_SHARE * len(times) else frozenset()


def slow_iterations(
    times: Sequence[float], writing: Collection[int] = frozenset()
) -> dict[int, float]:
    """Index -> seconds above the usual iteration; {} if there are too many to be exceptions.

    ``writing``: iterations that are slow whatever the others' scatter.
    """
    if len(times) < 3 * LEAST_SEEN:
        return {}
    usual = median(times)
    deviation = 1.4826 * median(abs(t - usual) for t in times)
    bar = max(SLOW_SHARE * usual, SLOW_DEVIATIONS * deviation)
    slow = {
        index: max(0.0, t - usual)
        for index, t in enumerate(times)
        if t - usual > bar or index in writing
    }
    return slow if len(slow) <= MOST_SHARE * len(times) else {}


def stalls(evidence: Evidence) -> tuple[list[Stall], set[int]]:
    """The periodic stalls found, costliest first, and all slow iterations, periodic or not."""
    times, whole = working_s(evidence), working_s(evidence, queued=True)
    found: list[Stall] = []
    usual = median(whole) if whole else 0.0
    slow = slow_iterations(times, writing_iterations(evidence, times))
    left = {index: max(0.0, whole[index] - usual) for index in slow}
    while len(found) < MOST:
        stall = _rhythm(left, len(times))
        if stall is None:
            break
        found.append(stall)
        left = {index: excess for index, excess in left.items() if index not in stall.iterations}
    return sorted(found, key=lambda stall: -stall.amortised_s), set(slow)


def _rhythm(slow: dict[int, float], count: int) -> Stall | None:
    """The period that covers most of the excess."""
    whole, best, covered = sum(slow.values()), None, 0.0
    for period in range(LEAST_PERIOD, count // LEAST_SEEN + 1):
        phases: Counter[int] = Counter()
        for index, excess in slow.items():
            phases[index % period] += excess  # type: ignore[assignment]
        if not phases:
            return None
        phase, excess = phases.most_common(1)[0]
        hits = [index for index in slow if index % period == phase]
        due = len(range(phase, count, period))
        if len(hits) >= max(LEAST_SEEN, RHYTHM_SHARE * due) and excess > max(
            COVERED_SHARE * whole, covered
        ):
            best = Stall(period, tuple(sorted(hits)), excess / len(hits), excess / count)
            covered = excess
    return best


@dataclass(frozen=True)
class Blamed:
    """A line, and its extra time in slow iterations compared with ordinary ones."""

    place: Place
    leaf: str
    excess_s: float  # in all slow iterations


def blamed(evidence: Evidence, members: Collection[int], others: Collection[int]) -> list[Blamed]:
    """Where the iterations ``members`` spend their extra time, costliest line first.

    ``others`` are slow for other reasons.
    """
    inside, outside = set(members), set(others) - set(members)
    ordinary = max(1, len(evidence.times_s) - len(inside | outside))
    slow_s: Counter[tuple[str, int]] = Counter()
    usual_s: Counter[tuple[str, int]] = Counter()
    leaves: dict[tuple[str, int], Counter[str]] = {}
    places: dict[tuple[str, int], Place] = {}
    written = {(c.place.file, c.place.line) for c in evidence.calls if c.kind == "file_write"}
    for frame in evidence.frames:
        key = frame.place.file, frame.place.line
        if (
            frame.phase == "data"
            or frame.iteration in outside
            or (frame.phase == "away" and key not in written)
        ):
            continue
        places[key] = frame.place
        if frame.iteration in inside:
            slow_s[key] += frame.seconds  # type: ignore[assignment]
            leaves.setdefault(key, Counter())[frame.leaf] += frame.seconds  # type: ignore[assignment]
        else:
            usual_s[key] += frame.seconds  # type: ignore[assignment]
    found = [
        Blamed(
            places[key],
            leaves[key].most_common(1)[0][0],
            seconds - len(inside) * usual_s[key] / ordinary,
        )
        for key, seconds in slow_s.items()
    ]
    return sorted(found, key=lambda line: -line.excess_s)


def writing_at(evidence: Evidence, members: Collection[int]) -> Calls | None:
    """The file write that took longest in ``members``."""
    inside = set(members)
    writes = [c for c in evidence.calls if c.kind == "file_write" and inside & set(c.iterations)]
    return max(writes, key=lambda c: spent_s(c, inside), default=None)


def spent_s(calls: Calls, members: Collection[int]) -> float:
    """Seconds that ``calls`` took in the iterations ``members``."""
    return sum(s for i, s in zip(calls.iterations, calls.each_s) if i in members)
