"""Which knobs can matter now: a job that waits for batches needs loader knobs and little else.

    loader-bound │ num_workers, prefetch_factor, … │ at 97% of the ceiling, or nothing more to gain │ all the others │

No knob is dropped here: the postponed ones are searched after the loader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from autotune.search.seeds import LOADER

# CPU-bound workers compete for cores with torch's threads, which spin while they wait for each
# other: two workers with two threads gave 0.83x, with one thread 1.3x; one thread alone gave 0.97x.
COMPETING = ("num_workers", "intra_op_threads")
LOADER_KINDS = ("loader", "epoch ends")  # kinds of bottleneck, see verdict/bottleneck.py
# share of the speed with an infinitely fast loader: a search cannot resolve the remaining 3% in
# reasonable time
AT_CEILING = 0.97
SURE = 2.0  # standard deviations by which a gain must exceed it


def at_ceiling(gain: float, sd: float, ceiling: float | None) -> bool:
    """Whether a log ``gain`` is certainly at :data:`AT_CEILING` of the loader's ceiling or above.

    Args:
        sd: standard deviation of ``gain``.
        ceiling: speed-up with an infinitely fast loader; None: unknown, the result is False.
    """
    return ceiling is not None and gain - SURE * sd >= math.log(AT_CEILING * ceiling)


def knobs_that_matter(
    bottleneck: str, domains: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(knobs that can matter now, knobs that wait), each in the order of ``domains``.

    Args:
        bottleneck: kind of bottleneck of the search's current configuration.
        domains: names of the knobs in the search.
    """
    names = tuple(domains)
    if bottleneck in LOADER_KINDS and any(n in LOADER for n in names):
        now = tuple(n for n in names if n in LOADER + COMPETING)
        return now, tuple(n for n in names if n not in now)
    return names, ()
