"""Seeded runs side by side: alignment, bins, curves, and whether the loss moves at all.

    samples consumed  0 ───────────────────────────────────────▶
    baseline seed 1   │ bin 1 │ bin 2 │ bin 3 │ bin 4 │ …   the mean loss of each bin; the candidate's bins cover
    candidate seed 1  │ bin 1 │ bin 2 │ bin 3 │ bin 4 │ …   the same samples and are subtracted one by one

Runs with the same batches share their steps, and are divided by step. Runs with different batch
sizes share only the samples: there a bin's value is the mean of the loss interpolated linearly
between steps, because the plain mean of a few early values of a falling loss is too high.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, variance

from autotune_trials.protocol.messages import Record

CURVE_POINTS = 60  # enough for a small plot
MOVING_BINS = 6
# 6 bin means of pure noise span more than 5 of their standard errors in less than 1% of runs
MOVING_ERRORS = 5.0
# … and more than 3.5 in some 13%: with less, more steps are not expected to show a movement
STILL_ERRORS = 3.5


@dataclass(frozen=True)
class LossRun:
    """One seeded run, with one entry per optimizer step from the first.

    ``gradient_norms`` (before clipping) and ``update_norms`` cover only the first few steps.
    ``skipped``: indexes of the steps that a gradient scaler skipped. ``gradient_error``: relative
    error of the first gradient against float32; ``gradient_error_allowed``: bfloat16's on the same
    batch; None if not measured.
    """

    losses: Sequence[float | None]
    samples_before: Sequence[float]
    gradient_norms: Sequence[float] = ()
    update_norms: Sequence[float] = ()
    skipped: Sequence[int] = ()
    # step of the record's first loss that is NaN or infinite, perhaps beyond ``losses``
    non_finite_at: int | None = None
    gradient_error: float | None = None
    gradient_error_allowed: float | None = None

    @property
    def steps(self) -> int:
        return min(len(self.losses), len(self.samples_before))

    def first_non_finite(self) -> int | None:
        """Step of the first loss that is NaN or infinite, None if all are finite."""
        return _first_non_finite(self.losses, self.non_finite_at)


def _first_non_finite(losses: Sequence[float | None], otherwise: int | None = None) -> int | None:
    steps = (i for i, loss in enumerate(losses) if loss is not None and not math.isfinite(loss))
    return next(steps, otherwise)


def loss_run(record: Record) -> LossRun:
    """What the loss comparison needs from a record; float16's gradient errors need further runs and
    are added by the caller."""
    return LossRun(
        losses=record.losses,
        samples_before=record.samples_before,
        gradient_norms=record.gradient_norms,
        update_norms=record.update_norms,
        skipped=record.skipped,
        non_finite_at=_first_non_finite(record.losses),
    )


def same_steps(a: LossRun, b: LossRun) -> bool:
    """Whether both runs had consumed the same samples before each of their common steps."""
    pairs = zip(a.samples_before, b.samples_before, strict=False)
    return all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in pairs)


def first_bits_differ(a: LossRun, b: LossRun) -> int | None:
    """First step at which loss, samples or gradient norm of two runs are not bit-identical; None if
    there is none.
    """
    columns = (
        (a.losses, b.losses),
        (a.samples_before, b.samples_before),
        (a.gradient_norms, b.gradient_norms),
    )
    different = [
        next(
            (
                i
                for i, (x, y) in enumerate(zip(left, right, strict=False))
                if x != y and not (math.isnan(x or 0.0) and math.isnan(y or 0.0))
            ),
            None,
        )
        for left, right in columns
    ]
    return min((i for i in different if i is not None), default=None)


def known(run: LossRun) -> tuple[list[float], list[float]]:
    """(samples before, loss) of the steps that have a loss."""
    pairs = [(s, x) for s, x in zip(run.samples_before, run.losses, strict=False) if x is not None]
    return [s for s, _ in pairs], [x for _, x in pairs]


def step_bins(steps: int, bins: int) -> list[range]:
    """``bins`` ranges of nearly equal length that cover ``steps`` steps."""
    edges = [round(i * steps / bins) for i in range(bins + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def bin_means(run: LossRun, steps: int, bins: int) -> list[float]:
    """Mean loss over each bin of the first ``steps`` steps; NaN where a bin holds no loss."""
    means = []
    for stretch in step_bins(steps, bins):
        values = [x for i in stretch if (x := run.losses[i]) is not None]
        means.append(fmean(values) if values else math.nan)
    return means


def sample_bins(runs: Iterable[LossRun], bins: int) -> list[float] | None:
    """Edges, in samples, of ``bins`` equal bins over the range that all ``runs`` cover; None if
    there is none.
    """
    spans = [(s[0], s[-1]) for s in (known(run)[0] for run in runs) if s]
    low, high = max((a for a, _ in spans), default=0.0), min((b for _, b in spans), default=0.0)
    return [low + (high - low) * i / bins for i in range(bins + 1)] if high > low else None


def bin_integrals(run: LossRun, edges: Sequence[float]) -> list[float]:
    """Mean over each bin of the loss interpolated linearly between steps. ``edges`` lie within the
    run.
    """
    samples, losses = known(run)
    knots = zip(samples, samples[1:], losses, losses[1:], strict=False)
    areas = [0.0, *accumulate((b - a) * (x + y) / 2 for a, b, x, y in knots)]

    def area_until(position: float) -> float:
        i = min(max(bisect_right(samples, position) - 1, 0), len(samples) - 2)
        width = samples[i + 1] - samples[i]
        part = position - samples[i]
        slope = (losses[i + 1] - losses[i]) / width if width > 0 else 0.0
        return areas[i] + part * (losses[i] + slope * part / 2)

    return [(area_until(b) - area_until(a)) / (b - a) for a, b in pairwise(edges)]


def curve(runs: Iterable[LossRun]) -> dict[int, float]:
    """Samples consumed -> mean loss over ``runs``, in at most :data:`CURVE_POINTS` bins. Step
    numbers are used if samples were not counted."""
    runs = [run for run in runs if run.steps]
    steps = min((run.steps for run in runs), default=0)
    result: dict[int, float] = {}
    for stretch in step_bins(steps, max(min(CURVE_POINTS, steps), 1)) if steps else []:
        values = [
            x
            for run in runs
            for i in stretch
            if (x := run.losses[i]) is not None and math.isfinite(x)
        ]
        if not values:
            continue
        counted = runs[0].samples_before[steps - 1] > 0
        position = fmean(runs[0].samples_before[i] for i in stretch) if counted else fmean(stretch)
        result[round(position)] = fmean(values)
    return result


@dataclass(frozen=True)
class Movement:
    """How far the baseline's loss moves over the window."""

    progress: float  # highest minus lowest bin mean, in the loss's unit
    level: float  # largest absolute bin mean
    noise: float  # standard error of one bin mean

    @property
    def constant(self) -> bool:
        return self.progress <= 1e-9 * self.level or self.progress == 0

    def lacks(self, smallest_visible: float) -> float:
        """How many times as far it would have to move to prove something; inf if it is not seen to
        move at all.
        """
        needed = max(MOVING_ERRORS * self.noise, smallest_visible)
        still = self.constant or self.progress < STILL_ERRORS * self.noise
        return math.inf if still else needed / self.progress

    def why_not(self, smallest_visible: float) -> str | None:
        """Why this loss can prove nothing, or None. ``smallest_visible``: it has to move further
        than this."""
        if self.constant:
            return (
                f"the job's own loss stays at {self.level:.4g}: it cannot show whether"
                " anything changed. Possible causes: placeholder data, a learning rate of"
                " zero, or a value that is divided by itself before backward. Tune on"
                " real data, or report the loss with autotune.step(loss=…)"
            )
        if self.progress < MOVING_ERRORS * self.noise:
            return (
                "the job's own loss does not move beyond its noise (by"
                f" {self.progress:.3g}, noise of a mean {self.noise:.2g}): it cannot show"
                " whether anything changed. More steps (convergence.steps) may help"
            )
        if self.progress <= smallest_visible:
            return (
                f"the job's own loss moves by only {self.progress:.3g} from {self.level:.4g}, too"
                " little for a model that learns less to stand out. More steps (convergence.steps) or a"
                " smaller tolerance (convergence.tolerance) may help"
            )
        return None


def movement(runs: Mapping[int, LossRun], steps: int) -> Movement:
    """How the loss of baseline ``runs`` moves over the first ``steps`` steps; noise is estimated
    from the scatter around the mean of each half bin."""
    per_run = [bin_means(run, steps, MOVING_BINS) for run in runs.values()]
    means = [
        fmean(column) for column in zip(*per_run, strict=False) if not any(map(math.isnan, column))
    ]
    if not means:
        return Movement(0.0, 0.0, 0.0)
    scatter = []
    for run in runs.values():
        # half bins, so that the falling loss itself does not count as noise
        for stretch in step_bins(steps, 2 * MOVING_BINS):
            values = [x for i in stretch if (x := run.losses[i]) is not None]
            if len(values) > 1:
                scatter.append(variance(values))
    per_bin = max(steps / MOVING_BINS * len(runs), 1)
    noise = math.sqrt(fmean(scatter) / per_bin) if scatter else 0.0
    return Movement(max(means) - min(means), max(abs(m) for m in means), noise)
