"""What a change really does, from many paired runs, independently of the rule that is scored.

effect    the mean paired difference of the loss in a bin, over the margin of verdicts:
          Δ = max(τ·|loss|, seed SD, at most a tenth of the window's progress); the largest over
          bins. τ, the bins and the doubled margin of the first half depend on the class the change
          is declared as.
probe     gradient norm or update norm of the first steps really differ settings  the fingerprint
differs
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autotune.verdict.fingerprint import fingerprint_differences
from autotune_trials.protocol.messages import Record
from beds.cells import Cell

VISIBLE_EFFECT = 1.5  # margins: a breaker with at least this effect counts
PROBE_STEPS = 8
PROBE = {"rounding": 0.05, "random-stream": 0.10}
LEAST_NORM = 1e-9


@dataclass(frozen=True)
class Truth:
    """``effect`` and its standard error in margins; inf if the loss is NaN or infinite."""

    effect: float
    error: float
    probe: bool
    settings: bool
    lost: float | None  # share of gradient entries lost to float16, mean over the run
    seeds: int

    @property
    def counts(self) -> bool:
        """Whether a check of the early trajectory must not accept this breaker."""
        return self.effect >= VISIBLE_EFFECT or self.probe or self.settings


def truth(cell: Cell, reference: Mapping[int, Record], candidate: Mapping[int, Record]) -> Truth:
    """The truth about ``cell`` from runs with the same seeds."""
    seeds = sorted(reference.keys() & candidate.keys())
    left, right = [reference[s] for s in seeds], [candidate[s] for s in seeds]
    effect, error = _effect(left, right, cell.numerics)
    metrics = [np.mean(r.metrics["lost"]) for r in right if "lost" in r.metrics]
    settings = fingerprint_differences(left[0].fingerprint, right[0].fingerprint, cell.declared)
    lost = float(np.mean(metrics)) if metrics else None
    return Truth(
        effect, error, _probe(left, right, cell.numerics), bool(settings), lost, len(seeds)
    )


def _effect(left: list[Record], right: list[Record], numerics: str) -> tuple[float, float]:
    rounding = numerics == "rounding"
    bins, tau = (6, 0.01) if rounding else (2, 0.02)
    baseline, changed = _binned(left, right, bins)
    if not np.isfinite(changed).all():
        return math.inf, 0.0
    level, spread = np.abs(baseline.mean(0)), baseline.std(0, ddof=1)
    margins = np.maximum(tau * level, np.minimum(spread, 0.1 * _progress(left)))
    if not rounding:
        margins[: bins // 2] *= 2
    differences = (changed - baseline) / margins
    means, errors = differences.mean(0), differences.std(0, ddof=1) / math.sqrt(len(left))
    worst = int(np.argmax(np.abs(means)))
    return float(abs(means[worst])), float(errors[worst])


def _binned(left: list[Record], right: list[Record], bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean losses by seed and bin: by step if both sides took the same batches, else by samples."""
    if all(_same_steps(a, b) for a, b in zip(left, right)):
        steps = min(len(r.losses) for r in (*left, *right))
        edges = [round(i * steps / bins) for i in range(bins + 1)]
        return tuple(  # type: ignore[return-value]
            np.array([[np.mean(_losses(r)[a:b]) for a, b in zip(edges, edges[1:])] for r in side])
            for side in (left, right)
        )
    last = min(r.samples_before[-1] for r in (*left, *right))
    edges = np.linspace(0, last, bins + 1)
    return tuple(np.array([_integrals(r, edges) for r in side]) for side in (left, right))  # type: ignore[return-value]


def _integrals(record: Record, edges: np.ndarray) -> np.ndarray:
    samples, losses = np.array(record.samples_before), _losses(record)
    fine = np.linspace(edges[0], edges[-1], 240 * (len(edges) - 1) + 1)
    values = np.interp(fine, samples, losses)
    middle = (values[1:] + values[:-1]) / 2
    return middle.reshape(len(edges) - 1, -1).mean(1)


def _losses(record: Record) -> np.ndarray:
    return np.array([math.nan if x is None else x for x in record.losses])


def _same_steps(a: Record, b: Record) -> bool:
    return all(x == y for x, y in zip(a.samples_before, b.samples_before))


def _progress(records: list[Record]) -> float:
    """Highest minus lowest of six bin means of the baseline."""
    mean = np.mean([_losses(r) for r in records], 0)
    parts = [part.mean() for part in np.array_split(mean, 6)]
    return float(max(parts) - min(parts))


def _probe(left: list[Record], right: list[Record], numerics: str) -> bool:
    """Whether the norms of the first steps differ.

    They do if in some step the mean log ratio over seeds is outside the limit by two of its
    standard errors. Under rounding, the two runs of each pair should agree, so the root mean square
    of all ratios must be within the limit as well.
    """
    if numerics not in PROBE:
        return False
    limit = math.log1p(PROBE[numerics])
    for name in ("gradient_norms", "update_norms"):
        a, b = (np.array([getattr(r, name)[:PROBE_STEPS] for r in side]) for side in (left, right))
        if not np.isfinite(b).all() or ((b < LEAST_NORM) & (a >= LEAST_NORM)).any():
            return True
        ratios = np.log(np.maximum(b, LEAST_NORM) / np.maximum(a, LEAST_NORM))
        errors = ratios.std(0, ddof=1) / math.sqrt(len(ratios))
        if (np.abs(ratios.mean(0)) - 2 * errors > limit).any():
            return True
        if numerics == "rounding" and float(np.mean(ratios**2)) > limit**2:
            return True
    return False
