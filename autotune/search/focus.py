"""What can matter now: a job that waits for its batches feels its loader's knobs, and nothing else.

    loader-bound │ num_workers, prefetch_factor, … │ at 97 % of the ceiling, or another bottleneck │ all the others │

Nothing is dropped here: what waits is searched once the loader is done with, and the other way round, where batches for nothing
would make the job no faster, the loader's knobs wait.
"""

from __future__ import annotations

from collections.abc import Iterable

LOADER = ("num_workers", "persistent_workers", "prefetch_factor", "data_staging", "pin_memory", "non_blocking", "in_order")
LOADER_KINDS = ("loader", "epoch ends")  # of a bottleneck, see verdict/bottleneck.py
AT_CEILING = 0.97  # of what batches for nothing would give: the 3 % left are less than a search can tell apart in reasonable time


def at_ceiling(speedup: float, ceiling: float | None) -> bool:
    """Whether ``speedup`` is what an infinitely fast loader would give. False where the ceiling is not known."""
    return ceiling is not None and speedup >= AT_CEILING * ceiling


def knobs_that_matter(bottleneck: str, domains: Iterable[str], ceiling_share: float | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what can matter now, what waits), each in the order of ``domains``.

    Args:
        bottleneck: its kind, of the configuration that the search is at.
        domains: names of the knobs in the search.
        ceiling_share: speed of that configuration as a share of what batches for nothing would give, 0..1; None: not known.
    """
    names = tuple(domains)
    loader = tuple(n for n in names if n in LOADER)
    others = tuple(n for n in names if n not in LOADER)
    if ceiling_share is not None and ceiling_share >= AT_CEILING:
        return others, loader
    if bottleneck in LOADER_KINDS and loader:
        return loader, others
    return names, ()
