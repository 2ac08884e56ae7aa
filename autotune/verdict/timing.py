"""From the iterations of a window to one cost: seconds per sample.

    │ warm-up │ first epoch │ iterations that count ─┤ epoch end ├──────────────│
    0         warm_up_end   first_counted             turnovers_s, kept separate

The estimator is the mean of the iteration times, with everything above 10 times the median reduced
to that, unless the job stalls at the same iteration in most of its runs. The mean is what users
pay. Median and minimum ignore occasional stalls of a configuration (about 9% bias in its favor
with a stall every tenth iteration), and a single long stall of the machine can spoil the plain
mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

from autotune.errors import InputError
from autotune.results import Anatomy
from autotune_spaces.base import Config
from autotune_spaces.facts import LoaderFacts, ReaderFacts
from autotune_trials.protocol.messages import PHASES, ROUNDS, Window

# medians: stalls up to here are the configuration's own and count in full; longer ones are reduced
# to this
WINSOR_FACTOR = 10.0
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

# Foreign load: on two cores a quarter of a core changes the time of a job that uses both by about
# an eighth, more than any difference the verdict has to resolve; tuner and agent themselves stay
# below a twentieth.
FOREIGN_CORES = 0.25
# The job itself also causes pressure (PSI "some"), with more runnable threads than cores, so only
# an increase over calm windows of the same configuration counts. Calm windows of one configuration
# differ by less than a tenth.
PRESSURE_RISE = 0.25
# without calm windows: only if it is high and something else demonstrably ran
PRESSURE_WITH_FOREIGN_LOAD = 0.5
SOME_FOREIGN_CORES = 0.1


@dataclass(frozen=True)
class Stalls:
    """How the stalls of a window count, where it is compared with another one.

    Attributes:
        limit: what the mean of a round is reduced to, the same in both windows; 0.0: nothing is.
        rounds_of: iterations per round, the same in both.
        own: indices of iterations at which the job itself stalls in most runs (it saves every 100
            steps): these count as usual ones here, and as ``own_cost``.
        own_cost: what the job's own stalls add to a sample.
    """

    limit: float
    rounds_of: int = 1
    own: frozenset[int] = frozenset()
    own_cost: float = 0.0


def winsorized_mean(times: Sequence[float], rounds_of: int = 1) -> float:
    """Mean of ``times`` with values above :data:`WINSOR_FACTOR` × median reduced to that; in the
    unit of ``times``.

    Args:
        rounds_of: this many iterations, or a few more, are averaged first. Workers that all wait
            equally long deliver in rounds: one long wait, then several ready batches. With 8 of
            them every eighth iteration may take 60 medians without being a stall.

    Raises:
        ValueError: no times.
    """
    return _mean(times, Stalls(usual_limit(times, rounds_of), rounds_of))


def usual_limit(times: Sequence[float], rounds_of: int = 1) -> float:
    """Where the stalls of ``times`` begin."""
    return WINSOR_FACTOR * median(_rounds(times, rounds_of)[0])


def _rounds(times: Sequence[float], rounds_of: int) -> tuple[Sequence[float], Sequence[int]]:
    """(mean, iterations) of each round, as two sequences."""
    if not times:
        raise ValueError("a window without iterations has no mean")
    if rounds_of <= 1:
        return times, [1] * len(times)
    # of two rounds, neither exceeds ten times their median
    count = min(max(len(times) // rounds_of, 3), len(times))
    edges = [round(n * len(times) / count) for n in range(count + 1)]
    rounds = list(pairwise(edges))
    return [fmean(times[a:b]) for a, b in rounds], [b - a for a, b in rounds]


def _mean(times: Sequence[float], stalls: Stalls) -> float:
    if stalls.limit <= 0:
        return fmean(times)
    if stalls.own:
        usual = median(times)
        times = [min(value, usual) if at in stalls.own else value for at, value in enumerate(times)]
    means, sizes = _rounds(times, stalls.rounds_of)
    return fmean([min(mean, stalls.limit) for mean in means], weights=sizes)


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


def _centre_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    centre = median(values)
    return centre, MAD_TO_SD * median(abs(v - centre) for v in values)


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


def mean_turnover_s(*windows: Window) -> float | None:
    """Mean time lost at an epoch boundary over ``windows`` of one configuration; None if they hold
    none.
    """
    turnovers = [t for window in windows for t in window.turnovers_s]
    return fmean(turnovers) if turnovers else None


def cost_per_sample(
    window: Window, *, turnover_s: float | None = None, stalls: Stalls | None = None
) -> float:
    """Seconds per sample, epoch boundaries included.

        winsorized mean iteration / mean samples  +  mean turnover / samples per epoch

    Args:
        window: steady iterations.
        turnover_s: mean time lost at an epoch boundary, if known better than from this window
            alone: a short window may hold none. Turnovers are not winsorized, because restarting
            workers is a regular cost.
        stalls: how they count; None: by this window alone.
    """
    samples, times = mean_samples(window), window.times_s
    mean = winsorized_mean(times, window.workers) if stalls is None else _mean(times, stalls)
    cost = mean / samples + (stalls.own_cost if stalls is not None else 0.0)
    turnover = mean_turnover_s(window) if turnover_s is None else turnover_s
    if turnover and window.epoch_iterations:
        cost += turnover / (window.epoch_iterations * samples)
    return cost


def joules_per_sample(window: Window, stalls: Stalls | None = None) -> float:
    """Energy per training sample, from the machine's counters. Anything else the job does now and
    then (epoch boundaries, evaluation) is left out. ``stalls`` as in :func:`cost_per_sample`.

    Raises:
        InputError: the counters did not move, or could not be read.
    """
    if not math.fsum(window.joules) > 0:
        raise InputError(
            "the machine's energy counters could not be read or did not advance",
            where="a window of the job",
            expected="counters that advance during training",
            remedy=(
                "run the same command again, without --fresh, to continue; or use objective:"
                " throughput"
            ),
        )
    joules = window.joules
    if stalls is None:
        return winsorized_mean(joules, window.workers) / mean_samples(window)
    return _mean(joules, stalls) / mean_samples(window) + stalls.own_cost


def cost_of_counted(
    counted: Window, *, turnover_s: float | None = None, stalls: Stalls | None = None
) -> float:
    """:func:`cost_per_sample` of the iterations of a run that count. Batches prepared before them
    are assumed to cost as much as the others.
    """
    cost, own = cost_per_sample(counted, turnover_s=turnover_s, stalls=stalls), 0.0
    if stalls is not None:
        own = stalls.own_cost
    return (cost - own) / (1.0 - from_stock(counted)) + own


def waiting_times_s(window: Window) -> tuple[float, ...]:
    """Seconds that each iteration waited for a batch, on the clock of ``times_s``; (): not known
    per iteration.

    On CUDA this is the time the device was idle. The CPU's own wait, ``data_s``, passes while the
    device is still working.
    """
    return window.phase_times_s.get("data") or window.data_s


def cost_without_data(window: Window) -> float:
    """Seconds per sample if batches were always ready: iteration times minus the waiting, without
    epoch boundaries.
    """
    waits_s = waiting_times_s(window)
    if len(waits_s) == len(window.times_s):
        busy = [max(t - wait, 0.0) for t, wait in zip(window.times_s, waits_s, strict=True)]
    else:
        wait = window.phases_s.get("data", 0.0) / max(len(window.times_s), 1)
        busy = [max(t - wait, 0.0) for t in window.times_s]
    return winsorized_mean(busy) / mean_samples(window)  # no rounds without the waiting


def restarts_workers(workers: object, persistent: object) -> bool:
    """Whether a DataLoader with these settings restarts its workers for every epoch."""
    return bool(workers) and not persistent


def restarts_with(loader: LoaderFacts | None, config: Config) -> bool:
    """Whether the job's loader, with ``config``, restarts its workers for every epoch."""
    return loader is not None and restarts_workers(
        config.get("num_workers", loader.num_workers),
        config.get("persistent_workers", loader.persistent_workers),
    )


def start_up_excess(window: Window, start: int) -> float:
    """Seconds by which the first ``start`` iterations exceed as many steady ones: compiling,
    searching kernels, starting workers."""
    steady = winsorized_mean(window.times_s[start:] or window.times_s, rounds_of=window.workers)
    return max(math.fsum(window.times_s[:start]) - start * steady, 0.0)


def start_of_workers_s(window: Window) -> float:
    """Seconds to start the workers: how much longer a run waited for its first batch than for later
    ones. ``window``: recorded from the first iteration."""
    return max(window.data_s[0] - median(window.data_s), 0.0) if window.data_s else 0.0


def reader_of(windows: Sequence[Window], compute_s: float | None) -> ReaderFacts | None:
    """How fetching batches spends its time in ``windows`` of one configuration; None if unknown.

    Args:
        compute_s: the model's time per batch if batches were always ready; None: the part of an
            iteration that is not spent waiting.
    """
    fetches = math.fsum(w.reader_fetches for w in windows)
    if fetches <= 0:
        return None
    cpu_s = math.fsum(w.reader_cpu_s for w in windows) / fetches
    wall_s = math.fsum(w.reader_wall_s for w in windows) / fetches
    queued_s = math.fsum(w.reader_queued_s for w in windows) / fetches
    if compute_s is None:
        compute_s = fmean(cost_without_data(w) * mean_samples(w) for w in windows)
    return ReaderFacts(fetch_s=max(wall_s - queued_s, cpu_s), cpu_s=cpu_s, compute_s=compute_s)


def anatomy(
    window: Window, left_out: int, *, turnover_s: float | None = None, stalls: Stalls | None = None
) -> Anatomy:
    """Where the time of one iteration of ``window`` goes.

    Args:
        left_out: number of iterations dropped before ``window``, for the report.
        turnover_s: mean time lost at an epoch boundary, if known better than from this window
            alone.
        stalls: how they count; None: by this window alone.
    """
    times = window.times_s
    count = len(times)
    reader = fmean(waiting_times_s(window) or [window.phases_s.get("data", 0.0) / count])
    batch = fmean(times)
    iteration = (
        winsorized_mean(times, rounds_of=window.workers)
        if stalls is None
        else _mean(times, stalls) + stalls.own_cost * mean_samples(window)
    )
    phases = {name: window.phases_s[name] / count for name in PHASES if name in window.phases_s}
    return Anatomy(
        phases_s=phases,
        iteration_s=iteration,
        median_s=median(times),
        min_s=min(times),
        max_s=max(times),
        samples_per_s=1.0 / cost_per_sample(window, turnover_s=turnover_s, stalls=stalls),
        reader_cost_s=reader,
        batch_cost_s=batch,
        reader_ratio=reader / batch if batch > 0 else 0.0,
        iterations=count,
        left_out=left_out,
        turnover_s=(mean_turnover_s(window) if turnover_s is None else turnover_s) or 0.0,
        epoch_iterations=window.epoch_iterations,
        peak_memory_gib=window.peak_memory_gib,
        minor_faults=window.minor_faults / count,
        user_s=window.user_s / count,
        system_s=window.system_s / count,
        involuntary_switches=window.involuntary_switches / count,
    )


def anatomy_after_warm_up(window: Window) -> Anatomy:
    left_out = warm_up_end(window.times_s)
    return anatomy(drop_start(window, left_out), left_out)


def disturbed(window: Window, calm: Sequence[Window] = ()) -> str | None:
    """Why ``window`` is unusable: other load on the machine, or a throttled device; None if it is
    fine.

    Args:
        window: the window to check.
        calm: other windows of the *same configuration*. Steady load is in all of them and cancels
            in a paired comparison: only what exceeds their median counts.
    """
    usually_throttled = sum(bool(w.throttled) for w in calm) > len(calm) / 2
    # a card that always hits its power cap does so in production too
    if window.throttled and not usually_throttled:
        return f"the device was throttled ({window.throttled})"
    usual_load = median(w.foreign_load for w in calm) if calm else 0.0
    if window.foreign_load - usual_load > FOREIGN_CORES:
        usual = f" (usually {usual_load:.2f})" if calm else ""
        return f"other processes used {window.foreign_load:.2f} cores{usual}"
    if calm:
        usual_pressure = median(w.cpu_pressure for w in calm)
        if window.cpu_pressure - usual_pressure > PRESSURE_RISE:
            return (
                f"tasks waited for a CPU {window.cpu_pressure:.0%} of the time (usually"
                f" {usual_pressure:.0%})"
            )
    elif (
        window.cpu_pressure > PRESSURE_WITH_FOREIGN_LOAD
        and window.foreign_load > SOME_FOREIGN_CORES
    ):
        return (
            f"tasks waited for a CPU {window.cpu_pressure:.0%} of the time, "
            f"with {window.foreign_load:.2f} cores in use by others"
        )
    return None
