"""What a few iterations of a trace look like, and how busy the device was.

Pure functions of a :class:`Trace`.
"""

from __future__ import annotations

from collections.abc import Iterable

from autotune.explain.records import Span
from autotune.explain.trace import Stretch, Trace

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
    spans = [(s.start_s, s.end_s) for s in (*trace.kernels, *trace.copies)]
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
    device = [
        *_spans(trace.kernels, start_s, end_s, lane="device"),
        *_spans(trace.copies, start_s, end_s, lane="copy"),
    ]
    device = sorted(device, key=lambda s: -s.duration_s)[:MOST_SPANS]
    phases = _spans(trace.phases, start_s, end_s)
    return tuple(sorted([*phases, *device], key=lambda s: s.start_s))


def _spans(
    stretches: Iterable[Stretch], start_s: float, end_s: float, lane: str = ""
) -> list[Span]:
    """The parts between two times. ``lane``: "" puts each stretch into the lane of its name."""
    found = []
    for each in stretches:
        begin, end = max(each.start_s, start_s), min(each.end_s, end_s)
        if end > begin:
            begin, duration_s = round(begin - start_s, 9), round(end - begin, 9)
            found.append(Span(lane or each.name, each.name[:80], begin, duration_s))
    return found
