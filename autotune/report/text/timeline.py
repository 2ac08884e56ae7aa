"""The timeline strip: what happened in a few iterations, before and after, on one time scale.

One row shows the phases of the iteration, and one row each other lane of spans (device kernels,
copies). Thousands of kernels are narrower than a pixel, so indistinguishable neighbors of one kind
are merged into one stretch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune import words
from autotune.explain.records import Side, Span
from autotune.report.text.story import PHASE_WORDS
from autotune.results import Result
from autotune_trials.protocol.messages import PHASES

WIDTH = 1000  # of the strip, in its own units
MOST_SPANS = 500  # per row; no screen shows more detail
FINEST = 0.5  # minimum width of a stretch, in units
KINDS = {
    "matrix": (
        re.compile(
            r"gemm|matmul|\bmm\b|bmm|addmm|linear|conv|cutlass|xmma|attention|fmha", re.IGNORECASE
        ),
        "matmuls and convolutions",
    ),
    "move": (
        re.compile(r"copy|memcpy|memset|clone|contiguous|\bcat\b|_to\b|::to\b", re.IGNORECASE),
        "copies",
    ),
}
KIND_WORDS = {
    **PHASE_WORDS,
    **{kind: said for kind, (_, said) in KINDS.items()},
    "rest": "everything else",
}


@dataclass(frozen=True)
class Stretch:
    """A rectangle in the strip, in the strip's units."""

    kind: str
    x: float
    width: float
    title: str


def strips(result: Result) -> list[dict[str, Any]]:
    """One strip per profiled side that has a timeline, before first."""
    sides = {name: side for name, side in result.explanation.sides.items() if _spans(side)}
    whole_s = whole(result)
    if whole_s <= 0:
        return []
    return [
        {
            "name": words.SIDES.get(name, words.clean(name, 60)),
            "total": words.duration_words(_end(side)),
            "trace": words.clean(side.trace),
            "lanes": [
                {"name": said, "spans": stretches(spans, whole_s)} for said, spans in _lanes(side)
            ],
            "marks": [round(WIDTH * at / whole_s, 2) for at in _beginnings(side)],
        }
        for name, side in sides.items()
    ]


def whole(result: Result) -> float:
    """Length of the common time scale in seconds: that of the longer strip."""
    return max((_end(side) for side in result.explanation.sides.values()), default=0.0)


def kinds(strips: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """(kind, label) of every kind drawn, for the legend."""
    used = {span.kind for strip in strips for lane in strip["lanes"] for span in lane["spans"]}
    return [(kind, said) for kind, said in KIND_WORDS.items() if kind in used]


def stretches(spans: Sequence[Span], whole_s: float) -> list[Stretch]:
    """Merge ``spans`` into at most :data:`MOST_SPANS` stretches, at least :data:`FINEST` wide."""
    ordered = sorted(spans, key=lambda s: (s.start_s, -s.duration_s))
    finest_s = FINEST * whole_s / WIDTH
    found = _merged(ordered, finest_s)
    while len(found) > MOST_SPANS:
        finest_s *= 1.5
        found = _merged(ordered, finest_s)
    unit = WIDTH / whole_s
    return [
        Stretch(kind, round(a * unit, 2), round(max((b - a) * unit, FINEST), 2), title)
        for kind, a, b, title in found
    ]


def _merged(spans: Sequence[Span], finest_s: float) -> list[tuple[str, float, float, str]]:
    found: list[tuple[str, float, float, str]] = []
    counts: list[int] = []
    for span in spans:
        kind, end_s = _kind(span), span.start_s + span.duration_s
        if (
            found
            and found[-1][0] == kind
            and end_s - span.start_s < 4 * finest_s
            and span.start_s - found[-1][2] < finest_s
            and (found[-1][2] - found[-1][1] < 8 * finest_s)
        ):
            counts[-1] += 1
            start_s, end_s = found[-1][1], max(end_s, found[-1][2])
            title = f"{counts[-1]} in {words.duration_words(end_s - start_s)}"
            found[-1] = (kind, start_s, end_s, title)
            continue
        name = PHASE_WORDS.get(span.name, words.clean(span.name, 90))
        title = f"{name}: {words.duration_words(span.duration_s)}"
        found.append((kind, span.start_s, end_s, title))
        counts.append(1)
    return found


def _kind(span: Span) -> str:
    if span.lane in PHASES:
        return span.lane
    if span.lane == "copy":
        return "move"
    return next((kind for kind, (pattern, _) in KINDS.items() if pattern.search(span.name)), "rest")


def _lanes(side: Side) -> list[tuple[str, list[Span]]]:
    """The rows of a strip, by name."""
    lanes: dict[str, list[Span]] = {"phases": [], "device": [], "copies": []}
    for span in _spans(side):
        if span.lane in PHASES:
            name = "phases"
        else:
            name = "copies" if span.lane == "copy" else words.clean(span.lane, 20)
        lanes.setdefault(name, []).append(span)
    return [(name, spans) for name, spans in lanes.items() if spans]


def _spans(side: Side) -> list[Span]:
    return [
        s
        for s in side.timeline
        if words.known(s.start_s)
        and words.known(s.duration_s)
        and s.start_s >= 0
        and s.duration_s >= 0
    ]


def _end(side: Side) -> float:
    return max((s.start_s + s.duration_s for s in _spans(side)), default=0.0)


def _beginnings(side: Side) -> list[float]:
    """The start of each iteration but the first: the start of its wait for data."""
    return sorted({s.start_s for s in _spans(side) if s.lane == "data" and s.start_s > 0})
