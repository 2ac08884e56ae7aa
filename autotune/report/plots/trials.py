"""The trials of a search, in the order they were run."""

from __future__ import annotations

from typing import Any

from autotune import words
from autotune.objectives import WHOLE_TRAINING
from autotune.report.plots.canvas import MARKS, Palette, legend, svg
from autotune.report.text.gains import trial_gain_name
from autotune.results import Result, Trial

STATES = {
    "complete": ("accent", "o"),
    "pruned": ("muted", "v"),
    "infeasible": ("warn", "X"),
    "failed": ("bad", "X"),
}


def trials_svg(result: Result) -> str:
    """Speed-up of each trial in the order they were run, by state; "" if there were no trials."""
    return svg(lambda axes: _draw(axes[0], result, MARKS), "trials") if result.trials else ""


def _draw(axes: Any, result: Result, palette: Palette) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.axhline(1.0, color=palette.ink, linewidth=1)
    confirmation = result.confirmation
    # the trials' figures are of an iteration
    comparable = result.environment.get("objective") not in WHOLE_TRAINING
    if (
        comparable
        and confirmation is not None
        and confirmation.pairs > 0
        and words.measured(confirmation.speedup)
    ):
        confirmed = confirmation.speedup
        axes.axhspan(
            confirmed.low,
            confirmed.high,
            color=palette.good,
            alpha=0.16,
            linewidth=0,
            label="finalist, fresh processes",
        )
    states = list(dict.fromkeys(t.state for t in result.trials))
    unmeasured: list[tuple[Trial, str, str]] = []
    for state in states:
        role, marker = STATES.get(state, ("muted", "s"))
        color = getattr(palette, role)
        of_state = [t for t in result.trials if t.state == state]
        shown = [
            (t.number, i)
            for t in of_state
            if (i := words.trial_interval(t)) is not None and words.known(i.estimate)
        ]
        unmeasured += [(t, color, marker) for t in of_state if words.trial_interval(t) is None]
        label = state if state in STATES else "other state"
        x = [number for number, _ in shown]
        y = [i.estimate for _, i in shown]
        # an infinite or missing bound is drawn as no bar, not as one across the whole picture
        low = [max(i.estimate - i.low, 0.0) if words.known(i.low) else 0.0 for _, i in shown]
        high = [max(i.high - i.estimate, 0.0) if words.known(i.high) else 0.0 for _, i in shown]
        look = {"fmt": marker, "color": color, "markersize": 5, "elinewidth": 1.1}
        axes.errorbar(x, y, [low, high], label=label, **look)
    for trial, color, marker in unmeasured:  # at the lower edge: they ran, but have no speed-up
        edge = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot([trial.number], [0.03], marker, color=color, markersize=6, **edge)
    axes.set_xlabel("trial, in the order run")
    axes.set_ylabel(f"{trial_gain_name(result)} over the baseline")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.margins(x=0.06, y=0.14)
    legend(axes, palette, tuple(STATES))
