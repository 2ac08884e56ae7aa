"""Which iterations of a window count, and parts of a window.

The start of a process is left out, and the first epoch where there are enough later ones:

    │ warm-up │ first epoch │ iterations that count ─┤ epoch end ├──────────────│
    0         warm_up_end   first_counted             turnovers_s, kept separate
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from autotune_trials.protocol.messages import ROUNDS, Window

WARM_UP_MINIMUM = 10  # allocator, autotuning and prefetch queues need at least this many iterations
WARM_UP_BLOCK = 8
LATER_EPOCH = 40  # fewest iterations of later epochs for which the first epoch is left out
# iterations' worth of batches: this close to its mean in the last quarter, the backlog is settled
SETTLED_BACKLOG = 0.5
MOST_FROM_STOCK = 0.9  # of a window's batches; beyond it, the loader's own speed is unknown
# a block median this close to the steady zone's belongs to it, however quiet the times are
STEADY_TOLERANCE = 0.015
# ... or within this many deviations, of the iterations / sqrt(length) or of the blocks themselves
STEADY_DEVIATIONS = 2.5
# for a normal distribution; without it one steady block in six would be taken for warm-up
MAD_TO_SD = 1.4826


def warm_up_end(times: Sequence[float]) -> int:
    """Index of the first iteration after warm-up: where the first steady block begins.

    A block is steady if its median is no further from that of the window's last half (at least two
    blocks) than max(1.5%, 2.5 deviations of the iterations / sqrt(length), 2.5 deviations of the
    block medians). The last term is for machines whose speed drifts: neighboring iterations are
    then alike, and their scatter says little about that of blocks. What strays later is no warm-up.
    At least :data:`WARM_UP_MINIMUM` iterations are dropped, but never more than half of a window
    that is too short to judge (shorter than that plus two blocks). Alternative rules:
    benchmarks/verdicts/warm_up.md.
    """
    n, length = len(times), WARM_UP_BLOCK
    if n < WARM_UP_MINIMUM + 2 * length:
        return min(WARM_UP_MINIMUM, n // 2)
    starts = range(WARM_UP_MINIMUM + (n - WARM_UP_MINIMUM) % length, n, length)
    medians = [median(times[at : at + length]) for at in starts]
    half = min(len(starts) // 2, len(starts) - 2)
    centre, iterations = _centre_and_deviation(times[starts[half] :])
    _, between = _centre_and_deviation(medians[half:])
    tolerance = max(
        STEADY_TOLERANCE * centre, STEADY_DEVIATIONS * max(iterations / math.sqrt(length), between)
    )
    near = (abs(each - centre) <= tolerance for each in medians[:half])
    return next((at for at, is_near in zip(starts, near) if is_near), starts[half])


def _centre_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    centre = median(values)
    return centre, MAD_TO_SD * median(abs(v - centre) for v in values)


def first_counted(window: Window, *, later_epochs: bool = True) -> int:
    """Index of the first iteration that counts: after the warm-up; after the first epoch, if
    ``later_epochs`` and the window extends far enough into the second; and after the batches that
    workers prepared during start-up, if they are used up within the window. With workers and epoch
    boundaries, whole epochs count.

    The first epoch differs from later ones: there was no evaluation yet (glibc keeps freed memory
    after the first large free), and no smaller last batch (after which torch.compile runs code for
    any size).
    """
    epoch = (later_epoch(window) if later_epochs else None) or 0
    if window.workers:
        whole = whole_epochs(window, epoch)
        if whole is not None:
            return whole
    start = epoch + warm_up_end(window.times_s[epoch:])
    return start if window.turnovers_s else max(start, _backlog_settles(window))


def whole_epochs(window: Window, second: int) -> int | None:
    """Index from which ``window`` holds as many whole epochs' worth of iterations as possible;
    None: not even one, and it need not, or no epoch ends in it.

    At an epoch boundary the workers' queue is empty, and with dozens of workers it takes most of an
    epoch to reach its usual length: the middle of an epoch is up to twice as fast as the whole.
    A part of the second epoch in which workers have delivered :data:`ROUNDS` times stands for it;
    a shorter one is completed by the end of the first.

    Args:
        second: index at which the second epoch starts, if the first is to be left out; 0: the first
            counts, after its warm-up.
    """
    times, epoch = len(window.times_s), epoch_iterations(window)
    if not any(window.turnovers_at) or not epoch or times - WARM_UP_MINIMUM < epoch:
        return None
    first_end = next(at for at in window.turnovers_at if at)
    start = max(second or warm_up_end(window.times_s[:first_end]), WARM_UP_MINIMUM)
    whole = (times - start) // epoch
    if not whole and second and times - second >= ROUNDS * window.workers:
        return None
    return times - max(whole, 1) * epoch


def epoch_iterations(window: Window) -> int | None:
    """Iterations per epoch, in a run that was recorded from its first iteration; None: unknown."""
    epoch, at = window.epoch_iterations, next((at for at in window.turnovers_at if at), None)
    if at is None or len(window.turnovers_s) != 1:
        return epoch
    # a loader without length, or a job that ends its epochs itself: what was seen counts
    seen = max(at, len(window.times_s) - at)
    if epoch is not None and seen > at:  # the first pass was shorter: the job resumes within one
        return epoch
    return seen if epoch is None else min(epoch, seen)


def with_epoch_of(window: Window, other: Window) -> Window:
    """``window`` with the iterations per epoch of ``other``, a run of the other side, if only that
    shows where epochs end.
    """
    epoch, own = epoch_iterations(other), epoch_iterations(window)
    if epoch is None:
        return window
    alike = max(round(epoch * mean_samples(other) / mean_samples(window)), 1)
    if own is None or (alike < own and not window.turnovers_s):
        return replace(window, epoch_iterations=alike)
    return window


def later_epoch(window: Window) -> int | None:
    """Index of the second epoch's first iteration; None: ``window`` holds too little after it."""
    turn = next((at for at in window.turnovers_at if at), None)
    return None if turn is None or len(window.times_s) - turn < LATER_EPOCH else turn


def _backlog_settles(window: Window) -> int:
    """Index of the first iteration at which the workers' backlog reaches its level at the end of
    ``window``; 0: not before the last quarter.
    """
    backlog, quarter = window.unmade, len(window.unmade) // 4
    if not quarter:
        return 0
    level = fmean(backlog[-quarter:]) - SETTLED_BACKLOG
    settles = next((i for i, n in enumerate(backlog) if n >= level), 0)
    return settles if settles < len(backlog) - quarter else 0


def from_stock(window: Window) -> float:
    """The share of ``window``'s batches that were prepared before it, 0..1.

    During start-up (compiling, searching kernels), the workers fill their queue. A loader-bound job
    then runs as fast as the model until the queue is empty: if workers deliver 90% of what is
    consumed, this takes ten times as many iterations as the queue holds batches. Meanwhile the
    workers' backlog grows by the batches they fall short.

    Args:
        window: iterations that count. If it contains an epoch boundary, the queue was empty there
            and the result is 0.0.
    """
    backlog, third = window.unmade, len(window.unmade) // 3
    if window.turnovers_s or not third:
        return 0.0
    growth = fmean(backlog[-third:]) - fmean(backlog[:third])
    return min(max(growth / (len(backlog) - third), 0.0), MOST_FROM_STOCK)


def drop_start(window: Window, n: int) -> Window:
    """``window`` without its first ``n`` iterations (at most all but one)."""
    return part_of(window, max(0, min(n, len(window.times_s) - 1)), len(window.times_s))


def part_of(window: Window, start: int, end: int) -> Window:
    """The iterations of ``window`` from ``start`` to before ``end``.

    Phases are exact if the window has them per iteration. Otherwise the data phase follows
    ``data_s``, which is known per iteration, and the other phases are scaled by the share of the
    remaining time that is kept. Turnovers are few and get averaged, so all are kept. Page faults
    and system time, which are high at the start, are exact; user time and switches are scaled by
    the share of iterations.
    """
    if start == 0 and end >= len(window.times_s):
        return window
    kept = slice(start, end)
    each = {name: values[kept] for name, values in window.phase_times_s.items()}
    share = len(window.times_s[kept]) / len(window.times_s)
    return replace(
        window,
        times_s=window.times_s[kept],
        samples=window.samples[kept],
        data_s=window.data_s[kept],
        turnovers_at=tuple(at - start for at in window.turnovers_at if start <= at < end),
        unmade=window.unmade[kept],
        joules=window.joules[kept],
        phase_times_s=each,
        phases_s=(
            {name: math.fsum(values) for name, values in each.items()}
            if each
            else _scaled_phases(window, kept)
        ),
        minor_faults=sum(window.minor_fault_counts[kept]),
        minor_fault_counts=window.minor_fault_counts[kept],
        system_s=math.fsum(window.system_times_s[kept]),
        system_times_s=window.system_times_s[kept],
        user_s=share * window.user_s,
        involuntary_switches=round(share * window.involuntary_switches),
    )


def _scaled_phases(window: Window, part: slice) -> dict[str, float]:
    total, kept = math.fsum(window.times_s), math.fsum(window.times_s[part])
    data, data_kept = math.fsum(window.data_s), math.fsum(window.data_s[part])
    rest_share = (kept - data_kept) / (total - data) if total > data else 0.0
    data_share = data_kept / data if data > 0 else (rest_share if not window.data_s else 0.0)
    return {
        name: value * (data_share if name == "data" else rest_share)
        for name, value in window.phases_s.items()
    }


def full_batches(window: Window) -> Window:
    """``window`` without the smaller last batches of epochs, if all others have the same size.

    A short block may or may not contain such a batch, which costs more per sample. If most batches
    differ in size, all are kept.
    """
    if not window.samples:
        return window
    usual = Counter(window.samples).most_common(1)[0]
    keep = [i for i, samples in enumerate(window.samples) if samples >= usual[0]]
    if usual[1] <= len(window.samples) / 2 or len(keep) == len(window.samples):
        return window
    each = {name: tuple(values[i] for i in keep) for name, values in window.phase_times_s.items()}
    shares = len(keep) / len(window.samples)
    return replace(
        window,
        times_s=tuple(window.times_s[i] for i in keep),
        samples=tuple(window.samples[i] for i in keep),
        data_s=tuple(window.data_s[i] for i in keep) if window.data_s else (),
        joules=tuple(window.joules[i] for i in keep) if window.joules else (),
        phase_times_s=each,
        phases_s=(
            {n: math.fsum(v) for n, v in each.items()}
            if each
            else {n: v * shares for n, v in window.phases_s.items()}
        ),
    )


def mean_samples(window: Window) -> float:
    """Samples per iteration; 1 if batches could not be counted, so that costs are per iteration."""
    mean = fmean(window.samples) if window.samples else 0.0
    return mean if mean > 0 else 1.0
