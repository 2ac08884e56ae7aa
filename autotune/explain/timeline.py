"""What a few iterations of a trace look like, and how busy the device was.

Pure functions of a :class:`Trace`.
"""

from __future__ import annotations

from collections.abc import Iterable

from autotune.explain.records import Span
from autotune.explain.trace import Trace

ITERATIONS = 3  # in the strip: enough to see what repeats
MOST_SPANS = 1500  # the page must open on a phone, too


def kernels_per_step(trace: Trace) -> float:
    """Device kernels per iteration; 0 on a CPU."""
    return len(trace.kernels) / len(trace.iterations) if trace.iterations else 0.0


def device_busy_s(trace: Trace) -> float | None:
    """Seconds per profiled iteration in which the device computed or copied.

    Without the time in which the job was away. None where there is no device. A host that does not
    wait is ahead of the device: what it queued counts until it is done.
    """
    if not trace.on_device or not trace.iterations:
        return None
    away = [(a.start_s, a.end_s) for a in trace.away]
    spans = [(k.start_s, k.end_s) for k in trace.kernels] + [
        (c.start_s, c.end_s) for c in trace.copies
    ]
    start_s = trace.iterations[0].start_s
    end_s = max([trace.iterations[-1].end_s, *(end for _, end in spans)])
    away_s = covered(away, start_s, end_s)
    return (covered([*spans, *away], start_s, end_s) - away_s) / len(trace.iterations)


def covered(spans: Iterable[tuple[float, float]], start_s: float, end_s: float) -> float:
    """Seconds of a stretch that are covered by spans; spans may overlap."""
    whole, reached = 0.0, start_s
    for begin, end in sorted(spans):
        begin, end = max(begin, reached), min(end, end_s)
        if end > begin:
            whole += end - begin
            reached = end
    return whole


def timeline(trace: Trace) -> tuple[Span, ...]:
    """Phases, kernels and copies of some iterations from the middle of the trace.

    In seconds from the start of the first iteration shown. Where there are more kernels and copies
    than a page can hold, the shortest are left out.
    """
    if not trace.iterations:
        return ()
    first = max((len(trace.iterations) - ITERATIONS) // 2, 0)
    shown = trace.iterations[first : first + ITERATIONS]
    start_s, end_s = shown[0].start_s, shown[-1].end_s
    lanes = [("device", k.name, k.start_s, k.end_s) for k in trace.kernels] + [
        ("copy", c.name, c.start_s, c.end_s) for c in trace.copies
    ]
    device = [
        (lane, name, max(a, start_s), min(b, end_s))
        for lane, name, a, b in lanes
        if a < end_s and b > start_s
    ]
    device = sorted(device, key=lambda d: d[2] - d[3])[:MOST_SPANS]
    phases = [
        (p.name, p.name, max(p.start_s, start_s), min(p.end_s, end_s))
        for p in trace.phases
        if p.start_s < end_s and p.end_s > start_s
    ]
    spans = (
        Span(lane, name[:80], round(a - start_s, 9), round(b - a, 9))
        for lane, name, a, b in [*phases, *device]
        if b > a
    )
    return tuple(sorted(spans, key=lambda s: s.start_s))
