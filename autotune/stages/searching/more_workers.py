"""How many workers are enough, once the model has caught up with the ones it has.

While the model is slow, four workers are as good as eight, and the search settles on either. Tuned,
it may wait for its batches, and knobs that make it faster then show no effect. The best
configuration is measured beside itself with another number of workers: with the next larger one if
it waits; with a smaller one if it does not, and configurations with that number did. If more
workers are faster, blocks with the smaller number and fewer say little about the other knobs, and
are forgotten. What was looked at is looked at again once the model has become faster.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean

from autotune.results import Anatomy, Trial
from autotune.search.model import Series
from autotune.search.seeds import LOADER
from autotune.stages.searching.block_record import BlockRecord
from autotune.stages.searching.configurations import Configuration, Configurations
from autotune_spaces.base import Config, Value

MORE_WORKERS = "more workers"  # purpose of such a series
WAITING = 0.1  # share of its time that a configuration waits for batches, at least
# log gain of more workers above which those with fewer are forgotten; and in standard errors
FASTER, FASTER_ERRORS = 0.05, 2.0
TUNED = 0.1  # faster by this share, without its waiting, the model has its numbers looked at again
BLOCKS = 3  # of each of the two


class NumbersOfWorkers:
    """Which numbers of workers were compared, and what is to be compared next.

    Args:
        own: the job's number of workers.
    """

    def __init__(self, own: Value) -> None:
        self._own = own
        # the larger number of a comparison -> :func:`model_s` then
        self._looked: dict[int, float] = {}
        self._disturbed: set[int] = set()  # those whose comparison other load has disturbed

    def of(self, config: Config) -> int:
        return _workers_of(config, self._own)

    def next_series(
        self, best: Trial | None, measured: Iterable[Config], configurations: Configurations
    ) -> Series | None:
        """The best configuration with two numbers of workers, if that is in question."""
        hidden = {
            self.of(it.config)
            for it in configurations
            if it.first.parts is not None
            and waits(it.first.parts)
            and set(it.config) - {*LOADER}
            and it.figure is None  # not forgotten yet
        }
        tried = {config.get("num_workers", self._own) for config in measured}
        series = next_look(best, self._own, {*map(_number, tried)}, hidden, self._looked)
        if series is not None and best is not None and best.anatomy is not None:
            self._looked[self.of(series.blocks[-1])] = model_s(best.anatomy)
        return series

    def learn(
        self, records: Sequence[BlockRecord], configurations: Iterable[Configuration], noise: float
    ) -> tuple[int, int] | None:
        """(fewer, more) if ``records`` are a comparison by which more workers are faster.

        ``noise``: standard deviation of a block's log cost.
        """
        if not records or records[0].purpose != MORE_WORKERS:
            return None
        first, last = records[0].config, records[-1].config
        more = self.of(last)
        both = [it.first.parts for it in configurations if it.config in (first, last)]
        seen_s = [model_s(parts) for parts in both if parts is not None]
        self._looked[more] = min(seen_s, default=self._looked.get(more, 0.0))
        before, after = (
            [r.log_cost for r in records if r.config == config and r.log_cost is not None]
            for config in (first, last)
        )
        if not (before and after) and more not in self._disturbed:
            self._disturbed.add(more)  # nothing was compared: once more
            del self._looked[more]
        return (self.of(first), more) if is_faster(before, after, noise) else None


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
    now = _workers_of(best.config, own)
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


def is_faster(before: Sequence[float], after: Sequence[float], noise: float) -> bool:
    """Whether more workers are, by the log costs of both halves of the series."""
    if not (before and after):
        return False
    error = noise * math.sqrt(1 / len(before) + 1 / len(after))
    return fmean(before) - fmean(after) > max(FASTER, FASTER_ERRORS * error)


def _workers_of(config: Config, own: Value) -> int:
    return _number(config.get("num_workers", own))


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
