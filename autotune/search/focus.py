"""What can matter now: a job that waits for its batches feels its loader's knobs, and little else.

    loader-bound │ num_workers, prefetch_factor, … │ at 97 % of the ceiling, or nothing more to gain │ all the others │

Nothing is dropped here: what waits is searched once the loader is done with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

LOADER = (
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "pin_memory",
    "non_blocking",
    "cuda_prefetch",
    "in_order",
)
# Workers that compute want the cores of the threads, which wait for each other busily: two workers
# beside two threads were 0.83x, beside one 1.3x, and one thread alone 0.97x.
COMPETING = ("num_workers", "intra_op_threads")
LOADER_KINDS = ("loader", "epoch ends")  # of a bottleneck, see verdict/bottleneck.py
# of what an infinitely fast loader would give: the 3 % left are less than a search can tell apart
# in reasonable time
AT_CEILING = 0.97
SURE = 2.0  # standard deviations by which a gain must be beyond it


def at_ceiling(gain: float, sd: float, ceiling: float | None) -> bool:
    """Whether a log ``gain`` with that standard deviation is surely what an infinitely fast loader
    would give.

    False where the ceiling (a speed-up) is not known.
    """
    return ceiling is not None and gain - SURE * sd >= math.log(AT_CEILING * ceiling)


def knobs_that_matter(
    bottleneck: str, domains: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what can matter now, what waits), each in the order of ``domains``.

    Args:
        bottleneck: its kind, of the configuration that the search is at.
        domains: names of the knobs in the search.
    """
    names = tuple(domains)
    if bottleneck in LOADER_KINDS and any(n in LOADER for n in names):
        now = tuple(n for n in names if n in LOADER + COMPETING)
        return now, tuple(n for n in names if n not in now)
    return names, ()
