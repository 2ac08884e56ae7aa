"""One DataLoader as the hooks know it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.dataloader.facts import Settings, state_of
from autotune_trials.agent.dataloader.rng_streams import mixed_seed
from autotune_trials.agent.dataloader.worker_ends import end_workers

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.hooks import LoaderHooks


class TrackedLoader:
    """What is known of one DataLoader. Holds no reference to it that would keep it alive."""

    def __init__(self, hooks: LoaderHooks, loader: Any, site: str, number: int) -> None:
        self.hooks = hooks
        # identity: without a callback, the same one for all who ask, also when it is dead
        self.loader = self.identity = weakref.ref(loader)
        self.site = site
        self.spot: Any = None  # (code, line) that built it, None if that is not known
        self.number = number
        self.key = f"{site}#{number}"  # of its family
        self.batch_size: int | None = None  # the job's own
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.idle: Any = None  # a source with workers that a knob made persistent
        self.batch = (0, 0)  # (bytes, tensors) of one of its batches
        # (weak, self) of the iterator that its latest batch came from
        self.mark: Any = (lambda: None, self)
        self.passes = 0  # epochs started
        self.end_s = 0.0  # that the end of the last one took: waiting for it, ending its workers
        self.seed = 0  # of the last source
        self.rebuilds = 0
        self.asked_worker_info = False
        self.refused: Settings | None = None  # settings that could not be built

    @property
    def training(self) -> bool:
        return self.hooks.training_state is self

    @property
    def is_other(self) -> bool:
        """Another loader than the one trained on, as far as that is known; one that is built anew
        for every epoch is the same.
        """
        known = self.hooks.training_state
        return known is not None and known is not self and self.key != known.key

    def epoch_before(self) -> TrackedLoader | None:
        """The loader whose epoch ended before the one that begins here: this one, or that which the
        job has built anew since. None: it is the first."""
        if self.passes > 1:
            return self
        last = self.hooks.training_state
        return last if last is not None and last is not self and last.key == self.key else None

    def ahead(self, count: int) -> list[Any]:
        """The next ``count`` batches of the iterator in use, fetched now; fewer at the end of its
        epoch.
        """
        iterator = self.mark[0]()
        return iterator.ahead(count) if iterator is not None else []

    def take_idle(self, template: Any) -> Any:
        """The idle source, or that of an iterator which has nothing left, if its workers still hold
        the dataset as it is now. The caller closes it or uses it.
        """
        idle, self.idle = self.idle, None
        if idle is None:
            idle = next(filter(None, (other.hand_over() for other in list(self.iterators))), None)
        if idle is not None and idle._autotune_dataset != state_of(template.dataset):
            # the job changed its dataset between epochs, which its own short-lived workers would
            # see
            end_workers(idle)
            return None
        return idle

    def park(self, source: Any, iterator: Any) -> bool:
        """Keep ``source`` for the next iterator, unless there is one with workers already."""
        others = [
            other for other in self.iterators if other is not iterator and other.source is not None
        ]
        if self.idle is not None or others or self.loader() is None or self.hooks.closed:
            return False
        self.idle = source
        return True

    def draw_seed(self, data: Any, template: Any) -> None:
        """What torch's own iterator would draw here for its workers."""
        data.torch.empty((), dtype=data.torch.int64).random_(generator=template.generator)

    def private_generator(self, data: Any) -> Any:
        self.rebuilds += 1
        return data.torch.Generator().manual_seed(mixed_seed(self.seed, self.rebuilds))
