"""How many workers are enough, once the model has caught up with the ones it has.

While the model is slow, four workers are as good as eight, and the search settles on either. Tuned,
it may wait for its batches, and knobs that make it faster then show no effect. The best
configuration is measured beside itself with another number of workers: with the next larger one if
it waits; with a smaller one if it does not, and configurations with that number did. If more
workers are faster, blocks with the smaller number and fewer say little about the other knobs, and
are forgotten. What was looked at is looked at again once the model has become faster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from autotune.results import Anatomy, Trial
from autotune.search.model import Series
from autotune_spaces.base import Config, Value

MORE_WORKERS = "more workers"  # purpose of such a series
WAITING = 0.1  # share of its time that a configuration waits for batches, at least
FASTER = 0.05  # log gain of more workers above which those with fewer are forgotten
TUNED = 0.1  # faster by this share, without its waiting, the model has its numbers looked at again
BLOCKS = 3  # of each of the two


def next_look(
    best: Trial | None,
    own: Value,
    tried: Collection[int],
    hidden: Collection[int],
    looked: Mapping[int, float],
) -> Series | None:
    """The series that decides; None: there is nothing to decide.

    Args:
        own: the job's number of workers.
        tried: numbers that have been measured.
        hidden: those with which configurations waited that set other knobs, too.
        looked: for every larger number that was looked at, :func:`model_s` then.
    """
    if best is None or best.anatomy is None:
        return None
    now = workers_of(best.config, own)
    fewer: int | None = now
    more: int | None = now
    if waits(best.anatomy):
        more = min((count for count in tried if count > now), default=None)
    else:
        fewer = max((count for count in hidden if count < now), default=None)
    if more is None or fewer is None:
        return None
    if more in looked and model_s(best.anatomy) > (1 - TUNED) * looked[more]:
        return None
    first, last = ({**best.config, "num_workers": count} for count in (fewer, more))
    return Series((first,) * BLOCKS + (last,) * BLOCKS, MORE_WORKERS)


def waits(parts: Anatomy) -> bool:
    return parts.reader_ratio >= WAITING


def model_s(parts: Anatomy) -> float:
    """Seconds of a sample without waiting for batches."""
    return max(1 - parts.reader_ratio, 0.01) / parts.samples_per_s


def is_faster(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether more workers are, by the log costs of both halves of the series."""
    return bool(before and after) and fmean(before) - fmean(after) > FASTER


def workers_of(config: Config, own: Value) -> int:
    return _number(config.get("num_workers", own))


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
