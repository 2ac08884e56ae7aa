"""Parallel coordinates of the trials: one row per knob, one line per trial, colored by speed-up.

The axes are horizontal rows, so that names and values are readable on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune import words
from autotune.report.plots.canvas import MARKS, WIDTH_IN, Palette, label, legend, svg
from autotune.report.text.gains import trial_gain_name
from autotune.results import Result, Trial
from autotune_spaces.base import Value, same

ROW_IN, FRAME_IN = 0.5, 0.85  # height of a knob's row, and of the legend and the last axis
MOST_KNOBS = 12  # rows; beyond that, the least important knobs are dropped
CHARACTERS = 34  # for all values in one row together
FAN = 0.11  # lines through one value are spread over this share of the row's width
NAMES = 0.6  # room for the knob names, in row widths
NAME_TEXT = {"fontsize": 10, "ha": "left", "va": "center", "zorder": 4}
VALUE_TEXT = {"fontsize": 9.5, "va": "top", "zorder": 4}


def parallel_svg(result: Result) -> str:
    """The plot as SVG; "" if fewer than two trials were measured or no knob was varied."""
    trials = [
        t
        for t in result.trials
        if t.speedup is not None and words.known(t.speedup) and t.speedup > 0
    ]
    rows = varied(result, trials)
    if len(trials) < 2 or not rows:
        return ""
    size = WIDTH_IN, FRAME_IN + ROW_IN * (len(rows) + 1)
    return svg(lambda axes: _draw(axes[0], result, trials, rows, MARKS), "parallel", size_in=size)


def varied(result: Result, trials: Sequence[Trial]) -> dict[str, list[Value]]:
    """knob -> the values it had in the trials and in the job, in the order of its domain.

    The most important knobs come first; at most :data:`MOST_KNOBS`.
    """
    rows: dict[str, list[Value]] = {}
    for name, default in result.baseline.items():
        had = [default, *(t.config[name] for t in trials if name in t.config)]
        domain = [*result.observation.domains.get(name, ()), *had]
        values: list[Value] = []
        for value in domain:
            if any(same(value, v) for v in had) and not any(same(value, v) for v in values):
                values.append(value)
        if len(values) > 1:
            rows[name] = values
    shares = result.explanation.importance
    most = sorted(rows, key=lambda name: -shares.get(name, 0.0))[:MOST_KNOBS]
    return {name: rows[name] for name in most}


def classes(trials: Sequence[Trial], palette: Palette) -> list[tuple[float, str, str]]:
    """(upper bound, color, label) of each speed-up class.

    The first is "not faster"; three equal steps on a log scale lead from 1 to the best.
    """
    best = max(t.speedup or 1.0 for t in trials)
    if best <= 1.0:
        return [(float("inf"), palette.muted, "not faster")]
    colors = (palette.scale1, palette.scale2, palette.scale3)
    bounds = [best ** (k / 3) for k in range(4)]
    found = [(1.0, palette.warn, "not faster")]
    for low, high, color in zip(bounds, bounds[1:], colors, strict=False):
        found.append(
            (high if color is not palette.scale3 else float("inf"), color, f"{low:.2f}–{high:.2f}×")
        )
    return found


def _draw(
    axes: Any,
    result: Result,
    trials: Sequence[Trial],
    rows: Mapping[str, Sequence[Value]],
    palette: Palette,
) -> None:
    scale = classes(trials, palette)
    names = list(rows)
    last = len(names)
    speeds = [t.speedup or 1.0 for t in trials]
    low, high = min([1.0, *speeds]), max([1.0, *speeds])
    span = high - low or 1.0

    for row, name in enumerate(names):
        values = rows[name]
        axes.plot([0, 1], [row, row], color=palette.line, linewidth=1, zorder=1)
        label(axes, -NAMES, row, words.clean(name, 20), palette.ink, **NAME_TEXT)
        for index, value in enumerate(values):
            x = _at(index, len(values))
            axes.plot([x], [row], "|", color=palette.muted, markersize=7, zorder=2)
            text = words.clean(words.value_words(value), max(CHARACTERS // len(values), 3))
            anchor, shift = "center", 0.0
            # a centred long label at either end would run out of the picture
            if len(text) > 4 and index == 0:
                anchor, shift = "left", -FAN / 2
            elif len(text) > 4 and index == len(values) - 1:
                anchor, shift = "right", FAN / 2
            label(axes, x + shift, row + 0.14, text, palette.muted, ha=anchor, **VALUE_TEXT)
    drawn: set[str] = set()
    best = max(trials, key=lambda t: t.speedup or 0.0)
    for order, trial in enumerate(sorted(trials, key=lambda t: t.speedup or 0.0)):
        color, said = next((c, w) for bound, c, w in scale if (trial.speedup or 0.0) <= bound)
        shift = (order + 1) / (len(trials) + 1) - 0.5
        xs = []
        for name in names:
            values = rows[name]
            value = trial.config.get(name, result.baseline[name])
            place = next(i for i, v in enumerate(values) if same(v, value))
            xs.append(_at(place, len(values)) + shift * min(FAN, 0.6 / len(values)))
        xs.append(((trial.speedup or 1.0) - low) / span)
        axes.plot(
            xs,
            range(last + 1),
            color=color,
            linewidth=2.6 if trial is best else 1.2,
            alpha=1.0 if trial is best else 0.85,
            label=said if said not in drawn else "_",
            zorder=3,
            solid_joinstyle="round",
        )
        drawn.add(said)
    axes.plot([0, 1], [last, last], color=palette.muted, linewidth=1.2, zorder=1)
    gain = trial_gain_name(result)
    label(axes, -NAMES, last, gain, palette.ink, fontweight="bold", **NAME_TEXT)
    for speed in sorted({low, 1.0, high}):
        x = (speed - low) / span
        axes.plot([x], [last], "|", color=palette.muted, markersize=7)
        if speed in (low, high) or 0.3 < x < 0.7:  # else it would touch the label at the end
            anchor = "left" if x < 0.15 else "right" if x > 0.85 else "center"
            said = words.factor_words(speed)
            label(axes, x, last + 0.14, said, palette.muted, ha=anchor, **VALUE_TEXT)
    axes.set_axis_off()
    axes.set_xlim(-NAMES, 1.08)
    axes.set_ylim(last + 0.5, -0.35)
    legend(axes, palette, [said for _, _, said in scale])


def _at(index: int, count: int) -> float:
    return index / (count - 1) if count > 1 else 0.5
