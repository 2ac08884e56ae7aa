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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, median

from autotune.verdict.iterations import (
    LATER_EPOCH,
    WARM_UP_MINIMUM,
    epoch_iterations,
    first_counted,
    later_epoch,
    mean_samples,
    part_of,
    warm_up_end,
    whole_epochs,
)
from autotune.verdict.timing import Stalls, usual_limit, winsorized_mean
from autotune_trials.protocol.messages import ROUNDS, Window

# what has to be left of both sides when they are cut to the same part
FEWEST, ENOUGH_S = 20, 2.0
ROUNDING = 1e-9  # of sums of samples


def counted_alike(windows: Sequence[Window], *, later_epochs: bool) -> list[tuple[int, Window]]:
    """(index of its first iteration, the iterations that count) of each of ``windows``, of runs
    recorded from their first iteration.

    With workers and epoch boundaries, each side's whole epochs count, wherever they begin. If a
    side holds none, both count from the beginning of their second epoch on. If a side does not
    reach its second epoch, both count over the first; the workers of the last of ``windows``, the
    candidate, then never count as faster than in its own later epochs.
    """
    windows = [replace(w, epoch_iterations=epoch_iterations(w)) for w in windows]
    candidate = windows[-1]
    if not later_epochs:
        windows = _over_the_same_epochs(windows)
    starts = [first_counted(w, later_epochs=later_epochs) for w in windows]
    ends = [len(w.times_s) for w in windows]
    done = [list(accumulate(w.samples)) for w in windows]  # samples, after each iteration
    counted = all(d and d[-1] > 0 for d in done)
    if any(w.workers and any(w.turnovers_at) for w in windows):
        seconds = [(later_epoch(w) if later_epochs else None) or 0 for w in windows]
        whole = [whole_epochs(w, second) for w, second in zip(windows, seconds, strict=True)]
        if later_epochs and counted and None in whole:
            starts, ends = _second_epochs(windows) or (starts, ends)
        else:
            starts = [a if b is None else b for a, b in zip(starts, whole, strict=True)]
    elif counted:
        begin = max(d[start - 1] if start else 0.0 for d, start in zip(done, starts, strict=True))
        later = [max(_after(d, begin), start) for d, start in zip(done, starts, strict=True)]
        if all(map(_is_enough, windows, later, ends)):
            starts = later
        earlier = [_after(d, min(d[-1] for d in done)) for d in done]
        if all(map(_is_enough, windows, starts, earlier)):
            ends = earlier
    parts = [
        (start, part_of(w, start, end)) for w, start, end in zip(windows, starts, ends, strict=True)
    ]
    if not later_epochs:
        parts[-1] = _first_or_slower_later(candidate, *parts[-1])
    return parts


def _first_or_slower_later(window: Window, start: int, part: Window) -> tuple[int, Window]:
    """``part``, from ``start``; or what comes after the first epoch, if ``part`` begins in that,
    leaves later iterations out, and workers deliver more slowly in those: they start one after the
    other, and the first have batches ready before the last have started.

    Whole epochs count, or a part of the second in which workers have delivered :data:`ROUNDS`
    times.
    """
    second, epoch, end = later_epoch(window), window.epoch_iterations, len(window.times_s)
    if not window.workers or not epoch or second is None:
        return start, part
    beyond = end - second
    all_of_it = start >= second or start + len(part.times_s) == end
    if all_of_it or beyond < min(epoch, ROUNDS * window.workers):
        return start, part
    later = end - (beyond // epoch * epoch or beyond)
    return max((start, part), (later, part_of(window, later, end)), key=_mean_per_sample)


def _mean_per_sample(part: tuple[int, Window]) -> float:
    window = part[1]
    return winsorized_mean(window.times_s, window.workers) / mean_samples(window)


def _after(done: Sequence[float], samples: float) -> int:
    """Number of iterations after which ``samples`` are done."""
    return bisect_left(done, samples * (1 - ROUNDING)) + 1 if samples > 0 else 0


def _is_enough(window: Window, start: int, end: int) -> bool:
    times_s = window.times_s[start:end]
    return len(times_s) >= FEWEST and math.fsum(times_s) >= ENOUGH_S


def _second_epochs(windows: Sequence[Window]) -> tuple[list[int], list[int]] | None:
    """(starts, ends) of equally many samples from the beginning of the second epoch on; None: too
    few.
    """
    starts = [later_epoch(w) or 0 for w in windows]
    beyond = min(math.fsum(w.samples[at:]) for w, at in zip(windows, starts, strict=True))
    ends = [
        at + _after(list(accumulate(w.samples[at:])), beyond)
        for w, at in zip(windows, starts, strict=True)
    ]
    enough = all(end - start >= FEWEST for start, end in zip(starts, ends, strict=True))
    return (starts, ends) if enough else None


def _over_the_same_epochs(windows: list[Window]) -> list[Window]:
    """``windows`` with the same number of samples after the first epoch; as they are, if too few
    iterations would be left.
    """
    turns = [next((at for at in w.turnovers_at if at), len(w.times_s)) for w in windows]
    beyond = min(math.fsum(w.samples[at:]) for w, at in zip(windows, turns, strict=True))
    ends = [
        at + _after(list(accumulate(w.samples[at:])), beyond)
        for w, at in zip(windows, turns, strict=True)
    ]
    if any(end < LATER_EPOCH + WARM_UP_MINIMUM for end in ends):
        return windows
    parts = [part_of(w, 0, end) for w, end in zip(windows, ends, strict=True)]
    return [w if any(w.turnovers_at) else replace(w, turnovers_s=()) for w in parts]


@dataclass(frozen=True)
class OwnStalls:
    """The stalls of one side that are the job's own: a checkpoint every 100 steps.

    Attributes:
        at: iterations.
        rate: how many come with a sample.
        usual: by how much one exceeds an iteration on average, in seconds or joules; for runs that
            hold none.
        once: iterations at which most runs stall, but not again later: code is compiled anew.
    """

    at: frozenset[int] = frozenset()
    rate: float = 0.0
    usual: float = 0.0
    once: frozenset[int] = frozenset()


Values = Callable[[Window], Sequence[float]]


def own_stalls(
    sides: Sequence[Sequence[Window]], values: Values = lambda window: window.times_s
) -> list[OwnStalls]:
    """Those of each of two sides. Most of its runs stall there, and again at another iteration, or
    the other side at the same. (What is compiled anew once is no such stall: a whole training pays
    for it once.)

    Those that both sides have come equally often with both, in samples; one side's windows may hold
    more of them. A side whose windows end before the other's first has it all the same.

    Args:
        values: what is counted: times, or joules.
    """
    found = [_stalls_of_most(windows) for windows in sides]
    own = [
        frozenset(at for at in mine if _recurs(mine, windows) or at in theirs)
        for windows, mine, theirs in zip(sides, found, reversed(found), strict=True)
    ]
    longest = [max((len(w.times_s) for w in windows), default=0) for windows in sides]
    reach, both = min(longest), own[0] & own[1]

    def rate(of: Sequence[Sequence[Window]], stalls: Collection[int], reach: int = reach) -> float:
        windows = [window for side in of for window in side]
        return len(_excesses(windows, [n for n in stalls if n < reach], values)) / max(
            _samples(windows, reach), ROUNDING
        )

    usual = [
        fmean(_excesses(windows, at, values) or (0.0,))
        for windows, at in zip(sides, own, strict=True)
    ]
    for mine, other in ((0, 1), (1, 0)):
        if not own[mine] and own[other] and longest[mine] <= min(own[other]):
            stalls = rate([sides[other]], own[other], longest[other])
            return [OwnStalls(own[other], stalls, usual[other], at - own[other]) for at in found]
    return [
        OwnStalls(at, rate(sides, both) + rate([windows], at - both), mean, most - at)
        for windows, at, mean, most in zip(sides, own, usual, found, strict=True)
    ]


def _samples(windows: Sequence[Window], reach: int) -> float:
    """Of the iterations at which a stall would be recognized, before iteration ``reach``."""
    return sum(
        mean_samples(w) * max(min(len(w.times_s), reach) - WARM_UP_MINIMUM, 0) for w in windows
    )


def _excesses(windows: Sequence[Window], stalls: Collection[int], values: Values) -> list[float]:
    return [excess for w in windows for excess in _excess(w, stalls, values(w))]


def _stalls_of_most(windows: Sequence[Window]) -> frozenset[int]:
    stalled: Counter[int] = Counter()
    for window in windows:
        limit = _limit_s(window)
        found = [at for at, s in enumerate(window.times_s) if s > limit and at >= WARM_UP_MINIMUM]
        stalled.update({at + near for at in found for near in (-1, 0, 1)})
    reached = {at: sum(len(w.times_s) > at for w in windows) for at in stalled}
    return frozenset(at for at, runs in stalled.items() if runs > max(reached[at] / 2, 1))


def _limit_s(window: Window) -> float:
    """Above which an iteration stalls. Of workers that deliver in rounds, the first batch of each
    takes as long as the round.
    """
    return max(window.workers, 1) * usual_limit(window.times_s or (0.0,), window.workers)


def _excess(window: Window, stalls: Collection[int], values: Sequence[float]) -> list[float]:
    """By how much each of ``stalls`` that ``window`` holds exceeds a usual iteration."""
    usual = median(values or (0.0,))
    return [max(values[at] - usual, 0.0) for at in _held(window, stalls) if at < len(values)]


def _held(window: Window, stalls: Collection[int]) -> list[int]:
    """Those of ``stalls`` at which ``window`` stalls."""
    limit = _limit_s(window)
    return [at for at in stalls if at < len(window.times_s) and window.times_s[at] > limit]


def _recurs(stalls: frozenset[int], windows: Sequence[Window]) -> bool:
    """Whether there are several after the warm-up, during which code may be compiled anew."""
    start = median([warm_up_end(w.times_s) for w in windows] or [0])
    return any(later - at > 1 for at, later in pairwise(sorted(s for s in stalls if s >= start)))


def stalls_alike(
    windows: Sequence[Window],
    parts: Sequence[tuple[int, Window]],
    own: Sequence[OwnStalls],
    values: Values = lambda window: window.times_s,
    reduced: bool = True,
) -> list[Stalls]:
    """How the stalls of ``parts`` count, which :func:`counted_alike` took from ``windows``.

    Args:
        own: of each side, as :func:`own_stalls` gives them.
        values: what is counted: times, or joules.
        reduced: False: all count in full but those in which code is compiled anew once.
    """
    rounds_of = max(1, *(window.workers for window in windows))
    limit = max(usual_limit(values(window), rounds_of) for _, window in parts)
    limit = limit if reduced else math.inf
    found = []
    for window, (start, _), stalls in zip(windows, parts, own, strict=True):
        excess = _excess(window, stalls.at, values(window))
        each = fmean(excess) if excess else stalls.usual
        usual = stalls.at if reduced else stalls.at | stalls.once
        at = frozenset(at - start for at in _held(window, usual))
        found.append(Stalls(limit, rounds_of, at, stalls.rate * each))
    return found
