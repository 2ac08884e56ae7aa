"""The performance summary of one configuration: reader cost, batch cost, ips and so on.

    │ left out │ timed iterations: costs, rates, cores in use, memory │ watched │ profiled: device, copies, FLOPs │
                 the profiler is off                                              shares and counts only, no times

Terms and layout follow Paddle's profiler (``paddle.profiler.benchmark``: reader_cost, batch_cost,
ips, reader ratio). Times come from iterations that nothing watches or profiles. Profiled iterations
contribute only what profiling does not stretch: counts, bytes, and the time in which the device has
work. (The host takes longer under the profiler, and the device then waits for it.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pvariance

from autotune.explain.flops import Kind, kind
from autotune.explain.records import Operator, Peak, PerfSummary
from autotune.explain.roofline import roof_for
from autotune.explain.trace import Trace
from autotune.verdict.iterations import drop_start, warm_up_end
from autotune.verdict.timing import waiting_times_s
from autotune_trials.protocol.messages import Window


@dataclass(frozen=True)
class Copies:
    """Host-to-device copies over some iterations."""

    nbytes: float  # total
    seconds: float  # total on the device's copy engine; 0: unknown
    steps: int


NAMED_SHARE = 0.05  # of the FLOPs: number formats with less are not named


@dataclass(frozen=True)
class Compute:
    """What a step computes, and the measured peak for the number formats it uses."""

    flops: float  # per step, forward and backward
    peak: float | None = None  # FLOP/s
    peak_name: str = ""  # "float32"


def summarize(
    window: Window,
    *,
    device: str,
    cores: int,
    busy_s: float | None = None,
    copies: Copies | None = None,
    compute: Compute | None = None,
) -> PerfSummary | None:
    """The summary of ``window``; None if it holds no iterations.

    Args:
        window: timed iterations from the first of the process on; warm-up is detected and left out.
        device: where the job computes, "cpu" or "cuda".
        cores: cores the job may use.
        busy_s: seconds per iteration with the device at work; CUDA only.
    """
    skipped = warm_up_end(window.times_s) if window.times_s else 0
    steady = drop_start(window, skipped)
    times, samples = steady.times_s, steady.samples
    if not times or min(times) <= 0:
        return None
    reader_s = fmean(waiting_times_s(steady) or [steady.phases_s.get("data", 0.0) / len(times)])
    batch_s = fmean(times)
    ips = [count / seconds for count, seconds in zip(samples, times, strict=True)]
    mfu: float | None = None
    mfu_of = ""
    if compute is not None and compute.peak:
        mfu = min(compute.flops / batch_s / compute.peak, 1.0)
        mfu_of = f"of the measured {compute.peak_name} peak"
    used, used_of = utilisation(
        window, device, cores, None if busy_s is None else min(busy_s / batch_s, 1.0)
    )
    return PerfSummary(
        reader_cost_s=reader_s,
        batch_cost_s=batch_s,
        reader_ratio=reader_s / batch_s,
        # total samples over total time: a mean of single rates would be too high
        ips_mean=sum(samples) / sum(times),
        ips_max=max(ips),
        ips_min=min(ips),
        ips_variance=pvariance(ips),
        steps=len(times),
        steps_skipped=len(window.times_s) - len(times),
        device_utilisation=used,
        utilisation_of=used_of,
        peak_memory_gib=window.peak_memory_gib,
        host_to_device_bytes=(
            copies.nbytes / copies.steps if copies is not None and copies.steps else None
        ),
        host_to_device_bytes_per_s=(
            copies.nbytes / copies.seconds if copies is not None and copies.seconds > 0 else None
        ),
        model_flops=compute.flops if compute is not None else None,
        mfu=mfu,
        mfu_of=mfu_of,
    )


def utilisation(
    window: Window, device: str, cores: int, busy_share: float | None
) -> tuple[float | None, str]:
    """(share, what it is a share of)."""
    if device == "cuda":
        return (busy_share, "of an iteration the device is busy" if busy_share is not None else "")
    if not window.session_load or cores < 1:
        return None, ""
    return (
        min(window.session_load / cores, 1.0),
        f"of the {cores} core{'s' * (cores != 1)} this job may use",
    )


def metrics(summaries: Mapping[str, PerfSummary | None]) -> dict[str, float]:
    """Figures for the tracker, as ``summary/<side>/<name>``; unknown ones are left out."""
    found: dict[str, float] = {}
    for side, summary in summaries.items():
        if summary is None:
            continue
        values = asdict(summary)
        values["ips"] = values.pop("ips_mean")
        for cost in ("reader_cost", "batch_cost"):
            values[f"{cost}_ms"] = 1e3 * values.pop(f"{cost}_s")
        found |= {
            f"summary/{side}/{name}": float(value)
            for name, value in values.items()
            if value is not None and not isinstance(value, str)  # what a figure is of
        }
    return found


def copies_of(trace: Trace) -> Copies | None:
    """Host-to-device copies of a profiled window; None where nothing runs on a device."""
    if not trace.on_device:
        return None
    mine = [copy for copy in trace.copies if copy.to_device]
    return Copies(
        float(sum(c.nbytes for c in mine)), sum(c.duration_s for c in mine), len(trace.iterations)
    )


def compute_of(
    flops: float | None, operators: Sequence[Operator], peaks: Sequence[Peak], tf32: bool
) -> Compute | None:
    """``flops`` per step, and the peak for the number formats in which they are done.

    The peak is the rate at which the machine would do this mixture, each part at its own measured
    peak.

    Args:
        tf32: float32 products may run on TensorFloat-32 units.
    """
    if not flops:
        return None
    values = {peak.name: peak.value for peak in peaks}
    done: dict[str, float] = {}  # FLOPs in each format
    for row in operators:
        roof = roof_for(row.dtypes, values, tf32 or "conv" in row.name)
        if row.flops and roof is not None and kind(row.name) is Kind.PRODUCT:
            done[roof.dtype] = done.get(roof.dtype, 0.0) + row.flops * row.calls
    if not done:
        return Compute(flops)
    total = sum(done.values())
    ideal_s = sum(amount / values[name] for name, amount in done.items())
    named = [
        name
        for name in sorted(done, key=lambda name: -done[name])
        if done[name] >= NAMED_SHARE * total
    ]
    return Compute(flops, total / ideal_s, " and ".join(named))
