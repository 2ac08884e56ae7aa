"""Which of the fetched batches an iteration trained on.

Some loops fetch ahead. accelerate (and so the Trainer of transformers) holds one batch back, so
that it recognizes the last one of an epoch; the first iteration then fetches two batches, and the
last one of an epoch none:

    fetched   b0 b1 │ b2 │ b3 │ … │ end │ b0' b1' │ …          ahead = 1: how many more the first iteration fetched than the second
    trained   b0    │ b1 │ b2 │ … │ bn  │ b0'     │ …

Batches used only for an evaluation (on the training loader itself, as graph examples do) do not
count as trained on. Nor do those of a pass that ended without any training, if the loader is then
started again (an evaluation by a copy of the model). If several loaders are iterated together, the
training loader's batch stands for all; if loaders take turns, each batch counts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.tracked_loader import IteratorMark, TrackedLoader
    from autotune_trials.agent.loop.interruptions import Interruptions

MOST, SOME = 0.5, 0.1  # shares of the iterations


class Batch(NamedTuple):
    """One batch as it was fetched."""

    loader: TrackedLoader
    mark: IteratorMark  # of the iterator it came from
    samples: float | None  # None: it was only evaluated
    wait_s: float
    turnover_s: float | None
    left_out: bool = False  # including all the time it took


class Trained(NamedTuple):
    """What one iteration trained on."""

    samples: float
    counted: bool  # a batch of the training loader was fetched, or had been
    wait_s: float
    turnovers_s: tuple[float, ...]
    # samples that the very first iteration was credited with, but this one trained on
    first_fetched_ahead: float = 0.0
    in_turn: bool = False  # on a batch of a loader other than usual: loaders take turns


class Consumption:
    """Batches of the running iteration, and those held back from earlier ones."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._held: deque[float] = deque()  # samples of batches fetched but not yet trained on
        self._ahead = 0  # batches the loop holds back
        self._iterations = 0
        self._drawn: IteratorMark | None = None  # mark of the iterator that training draws from
        self._ended: IteratorMark | None = None  # mark of an exhausted iterator
        # whether the latest batch was: a module called on it without gradients; a module called in
        # training, or backward run
        self.evaluated = self.trained = False
        self.mark: IteratorMark | None = None  # of the iterator begun last
        self._passed: TrackedLoader | None = None  # the loader of that iterator
        self._pass_trained = self._pass_ended = False
        self._taken = self._walked_together = self._in_turn = 0  # iterations

    @property
    def evaluating(self) -> bool:
        """Whether the latest batch was evaluated and not trained on."""
        return self.evaluated and not self.trained and bool(self.batches)

    @property
    def untouched(self) -> bool:
        """Whether the latest batch was neither evaluated nor trained on."""
        return bool(self.batches) and not self.evaluated and not self.trained

    @property
    def walks_together(self) -> bool:
        """Whether most iterations train on batches of several loaders: when one loader ends, the
        loop over them ends.
        """
        return self._walked_together > MOST * self._taken

    @property
    def mixture(self) -> str:
        """How loaders other than the training loader are trained on; "" if they are not."""
        if self.walks_together:
            return "batches of several DataLoaders together"
        return (
            "batches of several DataLoaders in turn" if self._in_turn > SOME * self._taken else ""
        )

    def go_on_with_first(self) -> None:
        """The first iteration, just taken, is not over."""
        self._iterations = 0

    def start_over(self) -> None:
        """The next iteration is the first."""
        self._held.clear()
        self._ahead = self._iterations = 0

    def last_pass_untrained(self, loader: TrackedLoader) -> bool:
        """Whether the latest pass was also over ``loader`` and reached its end, and nothing was
        trained during or since.
        """
        trained = self._pass_trained or self.trained
        return self._pass_ended and not trained and self._passed is loader

    def leave_out_pass(self) -> None:
        """Leave out all batches of the latest pass: they were for an evaluation."""
        mark = self.mark
        self.batches = [
            b._replace(samples=None, left_out=True) if b.mark is mark else b for b in self.batches
        ]

    def fetch(
        self,
        loader: TrackedLoader,
        mark: IteratorMark,
        samples: float,
        wait_s: float,
        turnover_s: float | None,
    ) -> None:
        """The job has received a batch; ``mark`` identifies the iterator."""
        if self.evaluated:
            self.settle()
        if mark is self._ended:
            self._ended = None  # a stretched epoch goes on
        if mark is not self.mark:
            self.mark, self._passed = mark, loader
            self._pass_trained = self._pass_ended = False
        elif self.trained:
            self._pass_trained = True
        self.trained = False
        self.batches.append(Batch(loader, mark, samples, wait_s, turnover_s))

    def drop_others(self) -> None:
        """Batches of all iterators but the latest were for something that was thrown away."""
        mark = self.batches[-1].mark if self.batches else None
        self.batches = [b if b.mark is mark else b._replace(samples=None) for b in self.batches]

    def drop_first(self, number: int) -> None:
        """The gradients of this iteration's first ``number`` batches were thrown away. If there are
        no others, the job trains on them again.
        """
        if number < len(self.batches):
            dropped = [b._replace(samples=None) for b in self.batches[:number]]
            self.batches = dropped + self.batches[number:]

    def end_epoch(self, mark: IteratorMark, trained: bool) -> None:
        """The iterator of ``mark`` is exhausted; ``trained``: a backward has run since the job
        began.
        """
        self.settle()
        self._ended = mark
        self._pass_ended = self._pass_ended or mark is self.mark
        # a whole pass over the data before training: statistics, a first evaluation
        if not trained:
            self.batches = [b._replace(samples=None) if b.mark is mark else b for b in self.batches]

    def take(self, interruptions: Interruptions) -> Trained:
        """The iteration ends. ``interruptions`` says whether waiting for loaders other than the
        training loader is part of it.
        """
        batches = self.batches
        if self._iterations < 2 or len(batches) != 1 or self.evaluated:
            return self._take_unusual(interruptions)
        loader, mark, samples, wait_s, turnover_s, left_out = batches[0]
        if samples is None or left_out or loader.is_other:
            return self._take_unusual(interruptions)
        self.batches = []
        self._taken += 1
        self._iterations += 1
        if mark is not self._drawn or self._ahead or self._held:
            self._take_in(batches)
            samples = self._consume()
        return Trained(samples, True, wait_s, () if turnover_s is None else (turnover_s,))

    def _take_unusual(self, interruptions: Interruptions) -> Trained:
        """The iteration did not train on one batch of the training loader."""
        alone = self.trained and not self.evaluated
        if self.evaluated:
            self.settle()
        batches, self.batches = [b for b in self.batches if not b.left_out], []
        mine = [b for b in batches if not b.loader.is_other]
        in_turn = alone and bool(batches) and not mine
        self._taken += 1
        self._in_turn += in_turn
        self._walked_together += bool(mine) and any(
            b.loader.is_other and b.samples is not None for b in batches
        )
        mine = batches[-1:] if in_turn else mine
        wait_s = sum(b.wait_s for b in (batches if interruptions.other_loader_counts else mine))
        turnovers = tuple(b.turnover_s for b in mine if b.turnover_s is not None)
        before = len(self._held)
        counted = bool(before or any(b.samples is not None for b in mine))
        same = self._take_in([b for b in mine if b.samples is not None])
        correction = self._learn(before, same) if self._iterations == 1 else 0.0
        self._iterations += 1
        return Trained(self._consume(), counted, wait_s, turnovers, correction, in_turn)

    def settle(self, left_out: bool = False) -> None:
        """The job is done with the latest batch. If it was only evaluated, it does not count as
        trained on; ``left_out``: nor does its time count.
        """
        if self.evaluating:
            self.batches[-1] = self.batches[-1]._replace(samples=None, left_out=left_out)
        self.evaluated = False

    def _take_in(self, batches: list[Batch]) -> bool:
        """Queue new batches; False if they come from another iterator than those held back."""
        same = True
        for batch in batches:
            if batch.mark is not self._drawn:
                same = same and self._drawn is None
                if self._ahead and self._drawn is not self._ended:
                    self._held.clear()  # the loop dropped its iterator and what it held back
                self._drawn = batch.mark
            self._held.append(batch.samples or 0.0)
        return same

    def _learn(self, first: int, same: bool) -> float:
        """In the second iteration: learn how many batches of the first, which was credited with all
        of them, were fetched ahead. Returns their samples.
        """
        second = len(self._held) - first
        if not same or second <= 0 or self._drawn is self._ended:
            second = first
        self._ahead = max(0, first - second)
        for _ in range(min(first, first - self._ahead)):
            self._held.popleft()  # credited, and trained on
        return sum(list(self._held)[: self._ahead])

    def _consume(self) -> float:
        held = self._held
        if self._iterations == 1:
            # all of it, until the second iteration shows what was fetched ahead; kept for _learn
            return sum(held)
        keep = 0 if self._drawn is self._ended else self._ahead
        samples = 0.0
        while len(held) > keep:
            samples += held.popleft()
        return samples
