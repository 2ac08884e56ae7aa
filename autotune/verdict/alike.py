"""Which iterations of two runs are compared: the same part of the training, with stalls that count
alike.

    A   │ warm-up │──│████████████████████│
    B   │ warm-up    │████████████████████│──────│      in samples
                     later start          end of the shorter, if enough is left

Iterations change during a training (longer sequences, an epoch's cached files), and so does a stall's
share of them: with limits of their own, the side with shorter iterations would be forgiven more of
a checkpoint that both write every 100 steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, median

from autotune.verdict.timing import (
    LATER_EPOCH,
    WARM_UP_MINIMUM,
    Stalls,
    epoch_iterations,
    first_counted,
    part_of,
    usual_limit,
)
from autotune_trials.protocol.messages import Window

# what has to be left of both sides when they are cut to the same part
FEWEST, ENOUGH_S = 20, 2.0
ROUNDING = 1e-9  # of sums of samples


def counted_alike(windows: Sequence[Window], *, later_epochs: bool) -> list[tuple[int, Window]]:
    """(index of its first iteration, the iterations that count) of each of ``windows``, of runs
    recorded from their first iteration.

    With workers and epoch boundaries, each side's whole epochs count, wherever they begin.
    """
    windows = [replace(w, epoch_iterations=epoch_iterations(w)) for w in windows]
    if not later_epochs:
        windows = _over_the_same_epochs(windows)
    starts = [first_counted(w, later_epochs=later_epochs) for w in windows]
    ends = [len(w.times_s) for w in windows]
    done = [list(accumulate(w.samples)) for w in windows]  # samples, after each iteration
    in_whole_epochs = any(w.workers and w.turnovers_at for w in windows)
    if not in_whole_epochs and all(d and d[-1] > 0 for d in done):
        begin = max(d[start - 1] if start else 0.0 for d, start in zip(done, starts, strict=True))
        later = [max(_after(d, begin), start) for d, start in zip(done, starts, strict=True)]
        if all(end - start >= FEWEST for start, end in zip(later, ends, strict=True)):
            starts = later
        earlier = [_after(d, min(d[-1] for d in done)) for d in done]
        if all(map(_is_enough, windows, starts, earlier)):
            ends = earlier
    return [
        (start, part_of(w, start, end)) for w, start, end in zip(windows, starts, ends, strict=True)
    ]


def _after(done: Sequence[float], samples: float) -> int:
    """Number of iterations after which ``samples`` are done."""
    return bisect_left(done, samples * (1 - ROUNDING)) + 1 if samples > 0 else 0


def _is_enough(window: Window, start: int, end: int) -> bool:
    times_s = window.times_s[start:end]
    return len(times_s) >= FEWEST and math.fsum(times_s) >= ENOUGH_S


def _over_the_same_epochs(windows: list[Window]) -> list[Window]:
    """``windows`` with the same number of samples after the first epoch; as they are, if that is
    none and workers deliver faster in the middle of an epoch than at its start, or too few
    iterations would be left.
    """
    turns = [next((at for at in w.turnovers_at if at), len(w.times_s)) for w in windows]
    beyond = min(math.fsum(w.samples[at:]) for w, at in zip(windows, turns, strict=True))
    ends = [
        at + _after(list(accumulate(w.samples[at:])), beyond)
        for w, at in zip(windows, turns, strict=True)
    ]
    short = any(end < LATER_EPOCH + WARM_UP_MINIMUM for end in ends)
    if short or (not beyond and any(w.workers for w in windows)):
        return windows
    return [part_of(w, 0, end) for w, end in zip(windows, ends, strict=True)]


@dataclass(frozen=True)
class OwnStalls:
    """The stalls of one side that are the job's own: a checkpoint every 100 steps.

    Attributes:
        at: iterations.
        cost: what they add to a sample on average: seconds, or joules.
    """

    at: frozenset[int] = frozenset()
    cost: float = 0.0


Values = Callable[[Window], Sequence[float]]


def own_stalls(
    sides: Sequence[Sequence[Window]], values: Values = lambda window: window.times_s
) -> list[OwnStalls]:
    """Those of each of two sides. Most of its runs stall there, and again at another iteration, or
    the other side at the same. (What is compiled anew once is no such stall: a whole training pays
    for it once.)

    If both sides have some, they come equally often with both, in samples: the windows may hold
    more of them on one side. So does a side whose windows end before the other's first.

    Args:
        values: what is counted: times, or joules.
    """
    found = [_stalls_of_most(windows) for windows in sides]
    own = [
        frozenset(at for at in mine if _recurs(mine) or at in theirs)
        for mine, theirs in zip(found, reversed(found), strict=True)
    ]
    if not any(own):
        return [OwnStalls() for _ in sides]
    seen = [
        [value for w in windows for value in _excess(w, at, values(w))]
        for windows, at in zip(sides, own, strict=True)
    ]
    samples = [sum(math.fsum(w.samples[WARM_UP_MINIMUM:]) for w in windows) for windows in sides]
    for mine, other in ((0, 1), (1, 0)):
        if own[mine]:
            continue
        longest = max((len(w.times_s) for w in sides[mine]), default=0)
        if longest <= min(own[other]):
            own[mine], seen[mine], samples[mine] = own[other], seen[other], samples[other]
    if all(seen):
        rate = sum(map(len, seen)) / max(sum(samples), 1.0)
        return [OwnStalls(at, rate * fmean(each)) for at, each in zip(own, seen, strict=True)]
    return [
        OwnStalls(at, math.fsum(each) / max(count, 1.0))
        for at, each, count in zip(own, seen, samples, strict=True)
    ]


def _stalls_of_most(windows: Sequence[Window]) -> frozenset[int]:
    stalled: Counter[int] = Counter()
    for window in windows:
        limit = _limit_s(window)
        found = [at for at, time_s in enumerate(window.times_s) if time_s > limit]
        stalled.update({at + near for at in found for near in (-1, 0, 1)})
    reached = {at: sum(len(w.times_s) > at for w in windows) for at in stalled}
    return frozenset(
        at
        for at, runs in stalled.items()
        if at >= WARM_UP_MINIMUM and runs > max(reached[at] / 2, 1)
    )


def _limit_s(window: Window) -> float:
    """Above which an iteration stalls. Of workers that deliver in rounds, the first batch of each
    takes as long as the round.
    """
    return max(window.workers, 1) * usual_limit(window.times_s or (0.0,), window.workers)


def _excess(window: Window, stalls: frozenset[int], values: Sequence[float]) -> list[float]:
    """By how much each of ``stalls`` that ``window`` holds exceeds a usual iteration."""
    limit, usual = _limit_s(window), median(values or (0.0,))
    return [
        max(values[at] - usual, 0.0)
        for at in stalls
        if at < len(values) and window.times_s[at] > limit
    ]


def _recurs(stalls: frozenset[int]) -> bool:
    return any(later - at > 1 for at, later in pairwise(sorted(stalls)))


def stalls_alike(
    parts: Sequence[tuple[int, Window]],
    own: Sequence[OwnStalls],
    values: Values = lambda window: window.times_s,
) -> list[Stalls]:
    """How the stalls of ``parts``, from :func:`counted_alike`, count.

    Args:
        own: of each side, as :func:`own_stalls` gives them.
        values: what is counted: times, or joules.
    """
    rounds_of = max(1, *(window.workers for _, window in parts))
    limit = max(usual_limit(values(window), rounds_of) for _, window in parts)
    return [
        Stalls(limit, rounds_of, frozenset(at - start for at in stalls.at), stalls.cost)
        for (start, _), stalls in zip(parts, own, strict=True)
    ]
