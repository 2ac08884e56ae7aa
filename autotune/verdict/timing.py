"""From the iterations of a window to one cost: seconds per sample.

The estimator is the mean of the iteration times, with everything above 10 times the median reduced
to that, unless the job stalls at the same iteration in most of its runs. The mean is what users
pay. Median and minimum ignore occasional stalls of a configuration (about 9% bias in its favor
with a stall every tenth iteration), and a single long stall of the machine can spoil the plain
mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from autotune.errors import InputError
from autotune.results import Anatomy
from autotune.verdict.iterations import drop_start, from_stock, mean_samples, warm_up_end
from autotune_spaces.base import Config
from autotune_spaces.facts import LoaderFacts, ReaderFacts
from autotune_trials.protocol.messages import PHASES, Window

# medians: stalls up to here are the configuration's own and count in full; longer ones are reduced
# to this
WINSOR_FACTOR = 10.0


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
