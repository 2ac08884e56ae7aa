"""More workers, once the model has caught up with the ones it has.

How many workers are enough depends on how fast the model trains: while it is slow, four are as good
as eight, and the search settles on either. Tuned, the model may wait for its batches again. The
best configuration is then measured beside itself with the next larger number. If that is faster,
blocks with fewer workers say little about the other knobs, since the waiting hid them: they are
forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean

from autotune.results import Trial
from autotune.search.model import Series
from autotune_spaces.base import Config, Value

MORE_WORKERS = "more workers"  # purpose of such a series
WAITING = 0.1  # share of its time that the best configuration waits for batches, at least
FASTER = 0.05  # log gain of more workers above which those with fewer are forgotten
BLOCKS = 3  # of each of the two


def next_look(
    best: Trial | None, own: Value, counts: Collection[Value], tried: Collection[Value]
) -> Series | None:
    """The series that decides; None: the best configuration does not wait, or cannot have more.

    Args:
        own: the job's number of workers.
        counts: numbers in the search.
        tried: those that have been measured, and not in such a series.
    """
    if best is None or best.anatomy is None or best.anatomy.reader_ratio < WAITING:
        return None
    now = workers_of(best.config, own)
    more = min((count for count in map(_number, counts) if count > now), default=None)
    if more is None or more not in tried:  # a number never tried has its first look to come
        return None
    with_more: Config = {**best.config, "num_workers": more}
    return Series((best.config,) * BLOCKS + (with_more,) * BLOCKS, MORE_WORKERS)


def is_faster(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether more workers are, by the log costs of both halves of the series."""
    return bool(before and after) and fmean(before) - fmean(after) > FASTER


def workers_of(config: Config, own: Value) -> int:
    return _number(config.get("num_workers", own))


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
