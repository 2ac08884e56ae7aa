"""How much a knob must be expected to gain to be kept, and when its start-up cost is paid back.

The required gain depends on what the knob may change. A gain within its error is expected to be
small; the knob is still kept if that exceeds its price. *Not proven* alone is no reason to drop a
knob: the confirmation guards the whole configuration.
"""

from __future__ import annotations

import math

from autotune.job.spec import JobSpec
from autotune.results import KnobGain
from autotune.search.model.judgement import worth
from autotune.verdict.speedup import LogRatio, around
from autotune_spaces.base import Numerics, Value

# minimum log gain
PRICES = {Numerics.EXACT: 0.005, Numerics.ROUNDING: 0.01, Numerics.STATISTICAL: 0.03}
FLAT = 1e3  # standard deviation of an uninformative prior


def judged(
    spec: JobSpec,
    name: str,
    value: Value,
    gain: LogRatio,
    start_up_s: float = 0.0,
    iteration_s: float = 0.0,
    doubted: bool = False,
) -> KnobGain:
    """Decide whether to keep ``value``, from pairs of fresh runs with and without it.

    The figure shown is shrunk towards no gain according to its uncertainty, because the values that
    look best are selected.

    Args:
        gain: log speed-up.
        start_up_s: its start-up cost.
        iteration_s: without the value.
        doubted: the running job showed little gain; fresh runs then have to be sure.
    """
    knob = spec.search_space[name]
    it = worth(gain.estimate, gain.standard_error, FLAT, live_error=0.0)
    shown = around(it.mean, it.sd)
    once_s = start_up_s if knob.start_up_cost else 0.0
    steps = break_even_steps(once_s, it.mean, iteration_s)
    price, reason = PRICES[knob.numerics], ""
    if it.expected <= price:
        reason = (
            f"{math.exp(gain.estimate):.2f}× in {gain.pairs} pairs of fresh runs: the expected"
            f" gain of {it.expected:.1%} is below the {price:.1%} needed to keep it"
        )
    elif doubted and shown.low <= 1:
        reason = (
            f"{math.exp(gain.estimate):.2f}× in {gain.pairs} pairs of fresh runs, within their"
            " error; the running job showed little gain"
        )
    elif steps is not None and steps > spec.planned_steps:
        reason = f"{shown.estimate:.2f}×, but {paid_back_words(once_s, steps)}"
    return KnobGain(name, value, shown, not reason, reason, once_s, steps)


def break_even_steps(start_up_s: float, log_gain: float, iteration_s: float) -> int | None:
    """Optimizer steps until a knob has paid back its start-up cost.

    None: it costs nothing, or never does. ``iteration_s``: without the knob, with all others.
    """
    if not start_up_s or log_gain <= 0:
        return None
    return math.ceil(start_up_s / (iteration_s * (1 - math.exp(-log_gain))))


def paid_back_words(start_up_s: float, steps: int) -> str:
    """Say why planned_steps are too few."""
    return f"its {start_up_s:.0f} s of start-up are paid back only after {steps} steps"
