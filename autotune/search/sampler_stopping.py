"""When a search by a sampler stops."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.results import Trial, best_of

# sampled trials in a row without progress; measured on the presets' spaces, see benchmarks
PLATEAU_TRIALS = 10
# smallest log ratio that counts as progress: half of the smallest gain ever adopted
PLATEAU_GAIN = 0.01


def plateau(trials: Sequence[Trial]) -> bool:
    """Whether the last :data:`PLATEAU_TRIALS` sampled trials found nothing better than before."""
    sampled = [i for i, t in enumerate(trials) if t.origin == "sampler"]
    if len(sampled) < PLATEAU_TRIALS:
        return False
    start = sampled[-PLATEAU_TRIALS]
    before, after = best_of(trials[:start]), best_of(trials[start:])
    gain = (before.log_ratio or 0.0 if before else 0.0) - (after.log_ratio or 0.0 if after else 0.0)
    return gain < PLATEAU_GAIN
