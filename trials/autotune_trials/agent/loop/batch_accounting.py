"""Which of the batches that were fetched an iteration trained on.

Some loops fetch ahead. accelerate (and so the Trainer of transformers) holds one batch back, to know the last of an epoch
when it gives it out; the first iteration then sees two batches, and the last of an epoch none:

    fetched   b0 b1 │ b2 │ b3 │ … │ end │ b0' b1' │ …          ahead = 1: what the first iteration fetched more than the second
    trained   b0    │ b1 │ b2 │ … │ bn  │ b0'     │ …

Batches that only went through an evaluation (on the training loader itself, as graph examples do) were trained on by none, nor
were those of a pass that ended before any training, if the loader is then begun anew (an evaluation by a copy of the model). Of
several loaders walked together the training loader's batch stands for all; where loaders take turns, each batch counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

MOST, SOME = 0.5, 0.1  # of the iterations


class Batch(NamedTuple):
    """One batch as it was fetched."""

    loader: Any
    mark: Any  # of the iterator it came from
    samples: float | None  # None: it was only evaluated
    wait_s: float
    turnover_s: float | None
    left_out: bool = False  # with all the time it took


class Trained(NamedTuple):
    """What one iteration trained on."""

    samples: float
    counted: bool  # a batch of the training loader was fetched, or had been
    wait_s: float
    turnovers_s: tuple[float, ...]
    first_fetched_ahead: float  # samples the very first iteration was credited with, and this one trained on
    in_turn: bool  # on a batch of another loader than usual: loaders take turns


class Consumption:
    """Batches of the running iteration, and those held back from earlier ones."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._held: deque[float] = deque()  # samples of batches fetched, and not trained on yet
        self._ahead = 0  # batches the loop holds back
        self._iterations = 0
        self._mark: Any = None  # of the iterator that training draws from
        self._ended: Any = None  # mark of an iterator that has nothing left
        self._evaluated = self._trained = False  # since the last batch
        self._pass: tuple[Any, Any] = (None, None)  # (loader, mark) of the latest iterator begun
        self._pass_trained = self._pass_ended = False
        self._taken = self._walked_together = self._in_turn = 0  # iterations

    @property
    def evaluated(self) -> bool:
        """The latest batch has met an evaluation."""
        return self._evaluated

    @property
    def evaluating(self) -> bool:
        """The latest batch has met an evaluation, and no training."""
        return self._evaluated and not self._trained and bool(self.batches)

    @property
    def untouched(self) -> bool:
        """The latest batch has met neither."""
        return bool(self.batches) and not self._evaluated and not self._trained

    @property
    def walks_together(self) -> bool:
        """Most iterations train on batches of several loaders: when one ends, the loop over them ends."""
        return self._walked_together > MOST * self._taken

    @property
    def mixture(self) -> str:
        """How other loaders than the training one are trained on; "" if they are not."""
        if self.walks_together:
            return "batches of several DataLoaders together"
        return "batches of several DataLoaders in turn" if self._in_turn > SOME * self._taken else ""

    def go_on_with_first(self) -> None:
        """The first iteration, just taken, is not over."""
        self._iterations = 0

    def start_over(self) -> None:
        """The next iteration is the first."""
        self._held.clear()
        self._ahead = self._iterations = 0

    def begins_pass(self, mark: Any) -> bool:
        """The batch just asked for is the first of the iterator ``mark``."""
        return mark is not self._pass[1]

    def passed_in_vain(self, loader: Any) -> bool:
        """The latest pass was over ``loader`` as well, went to its end, and nothing was trained meanwhile or since."""
        return self._pass_ended and not self._pass_trained and self._pass[0] is loader

    def leave_out_pass(self) -> None:
        """All batches of the latest pass were for an evaluation."""
        mark = self._pass[1]
        self.batches = [b._replace(samples=None, left_out=True) if b.mark is mark else b for b in self.batches]

    def fetch(self, loader: Any, mark: Any, samples: float, wait_s: float, turnover_s: float | None) -> None:
        """The job has been given a batch; ``mark`` identifies the iterator."""
        if self._evaluated:
            self.settle()
        self._evaluated = self._trained = False
        if mark is self._ended:
            self._ended = None  # a stretched epoch goes on
        if self.begins_pass(mark):
            self._pass, self._pass_trained, self._pass_ended = (loader, mark), False, False
        self.batches.append(Batch(loader, mark, samples, wait_s, turnover_s))

    def next_batch(self) -> None:
        """As :meth:`fetch`, of batches that nobody counts."""
        self._evaluated = self._trained = False

    def drop_others(self, mark: Any) -> None:
        """Batches of other iterators than ``mark``'s were for something that was thrown away."""
        self.batches = [b if b.mark is mark else b._replace(samples=None) for b in self.batches]

    def evaluate(self) -> None:
        """A module is called without gradients."""
        self._evaluated = True

    def train(self) -> None:
        """A module is called in training, or backward runs."""
        self._trained = self._pass_trained = True

    def end_epoch(self, mark: Any, trained: bool) -> None:
        """The iterator of ``mark`` has nothing left; ``trained``: a backward ran since the job began."""
        self.settle()
        self._ended = mark
        self._pass_ended = self._pass_ended or not self.begins_pass(mark)
        if not trained:  # a whole pass over the data before training: statistics, a first evaluation
            self.batches = [b._replace(samples=None) if b.mark is mark else b for b in self.batches]

    def take(self, is_other: Callable[[Any], bool], others_count: bool) -> Trained:
        """The iteration ends. ``is_other``: whether a loader is known not to be the training one; ``others_count``: whether waiting
        for such a one is part of the iteration."""
        alone = self._trained and not self._evaluated
        self.settle()
        if self._iterations > 1 and len(self.batches) == 1:
            only = self.batches[0]
            if only.samples is not None and not only.left_out and not is_other(only.loader):
                return self._take_one(only)
        batches, self.batches = [b for b in self.batches if not b.left_out], []
        mine = [b for b in batches if not is_other(b.loader)]
        in_turn = alone and bool(batches) and not mine
        self._taken += 1
        self._in_turn += in_turn
        self._walked_together += bool(mine) and any(is_other(b.loader) and b.samples is not None for b in batches)
        mine = batches[-1:] if in_turn else mine
        wait_s = sum(b.wait_s for b in (batches if others_count else mine))
        turnovers = tuple(b.turnover_s for b in mine if b.turnover_s is not None)
        before = len(self._held)
        counted = bool(before or any(b.samples is not None for b in mine))
        same = self._take_in([b for b in mine if b.samples is not None])
        correction = self._learn(before, same) if self._iterations == 1 else 0.0
        self._iterations += 1
        return Trained(self._consume(), counted, wait_s, turnovers, correction, in_turn)

    def _take_one(self, batch: Batch) -> Trained:
        """The usual iteration, quickly: one batch of the training loader."""
        self.batches = []
        self._taken += 1
        self._iterations += 1
        self._take_in([batch])
        return Trained(self._consume(), True, batch.wait_s, () if batch.turnover_s is None else (batch.turnover_s,), 0.0, False)

    def settle(self, left_out: bool = False) -> None:
        """The job is done with the latest batch. Was it only evaluated, nobody trained on it; ``left_out``: nor does its time count."""
        if self.evaluating:
            self.batches[-1] = self.batches[-1]._replace(samples=None, left_out=left_out)
        self._evaluated = False

    def _take_in(self, batches: list[Batch]) -> bool:
        """Queue new batches up; False if they come from another iterator than those held back."""
        same = True
        for batch in batches:
            if batch.mark is not self._mark:
                same = same and self._mark is None
                if self._ahead and self._mark is not self._ended:
                    self._held.clear()  # the loop left its iterator, and what it held back of it
                self._mark = batch.mark
            self._held.append(batch.samples or 0.0)
        return same

    def _learn(self, first: int, same: bool) -> float:
        """In the second iteration: how many batches of the first, all of which it was credited with, were fetched ahead."""
        second = len(self._held) - first
        if not same or second <= 0 or self._mark is self._ended:
            second = first
        self._ahead = max(0, first - second)
        for _ in range(min(first, first - self._ahead)):
            self._held.popleft()  # credited, and trained on
        return sum(list(self._held)[: self._ahead])

    def _consume(self) -> float:
        held = self._held
        if self._iterations == 1:
            return sum(held)  # all of it, until the second iteration shows what was fetched ahead; kept for _learn
        keep = 0 if self._mark is self._ended else self._ahead
        samples = 0.0
        while len(held) > keep:
            samples += held.popleft()
        return samples
