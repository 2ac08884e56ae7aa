"""One DataLoader, as the hooks track it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune_trials.agent.dataloader.batch_seeds import mixed_seed
from autotune_trials.agent.dataloader.facts import Settings, own_batch_size, rebatches
from autotune_trials.agent.dataloader.worker_ends import end_workers
from autotune_trials.agent.dataloader.workers_copy import workers_copy
from autotune_trials.agent.facts.construction import BuiltAt
from autotune_trials.agent.loop.batches import Weight

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.switchable_iterator import SwitchableIterator
    from autotune_trials.agent.dataloader.training_choice import TrainingLoaderChoice


class IteratorMark(NamedTuple):
    """Identifies one iterator; compared by identity."""

    iterator: Callable[[], SwitchableIterator | None]  # a weak reference to it
    loader: TrackedLoader


class TrackedLoader:
    """What is known of one DataLoader. Keeps no reference that would keep the loader alive."""

    def __init__(
        self, data: Any, choice: TrainingLoaderChoice, loader: Any, site: str, number: int
    ) -> None:
        self._data, self._choice = data, choice
        # identity has no callback: torch returns the same object to all who ask, even for a dead
        # loader
        self.loader = self.identity = weakref.ref(loader)
        self.site = site
        self.built_at: BuiltAt | None = None  # None if unknown
        self.number = number
        self.key = f"{site}#{number}"  # its family's
        self.batch_size: int | None = None  # the job's own
        self.holds_batch_size = False  # another one is written into the loader
        self.iterators: weakref.WeakSet[SwitchableIterator] = weakref.WeakSet()
        self.idle: Any = None  # an idle source whose workers a knob made persistent
        self.batch = Weight()
        self.mark = IteratorMark(lambda: None, self)  # of the iterator that gave the latest batch
        self.passes = 0  # epochs started
        self.end_s = 0.0  # time the last epoch's end took: waiting for it, ending its workers
        self.seed = 0  # base seed of the last source
        self.rebuilds = 0
        # another thread than the one that trains asks for its batches (IterationMeter)
        self.read_aside = False
        self.refused: Settings | None = None  # settings that could not be built

    @property
    def training(self) -> bool:
        return self._choice.loader is self

    @property
    def is_other(self) -> bool:
        """Whether another loader is known to be the one trained on; a loader rebuilt for every
        epoch counts as the same.
        """
        known = self._choice.loader
        return known is not None and known is not self and self.key != known.key

    def note_batch_size(self, loader: Any) -> None:
        """Note the job's own batch size, which it may change after it has built ``loader``."""
        data = self._data
        if not self.holds_batch_size or not rebatches(data, loader):
            self.batch_size = own_batch_size(data, loader)

    def epoch_before(self) -> TrackedLoader | None:
        """The loader whose epoch ended before the one that begins here: this one, or the one it
        replaces if the job rebuilds its loader. None for the first epoch.
        """
        if self.passes > 1:
            return self
        last = self._choice.loader
        return last if last is not None and last is not self and last.key == self.key else None

    def ahead(self, count: int) -> list[Any]:
        """Fetch the next ``count`` batches of the iterator in use now; fewer at the end of its
        epoch.
        """
        iterator = self.mark.iterator()
        return iterator.ahead(count) if iterator is not None else []

    def take_idle(self, template: Any) -> Any:
        """The idle source, or that of an exhausted iterator, if its workers still hold the dataset
        and the functions as they are now. The caller closes it or uses it.
        """
        idle, self.idle = self.idle, None
        if idle is None:
            idle = next(filter(None, (other.hand_over() for other in list(self.iterators))), None)
        if idle is not None and idle._autotune_copied != workers_copy(template):
            # the job changed them between epochs; its own short-lived workers would see that
            end_workers(idle)
            return None
        return idle

    def park(self, source: Any, iterator: SwitchableIterator) -> bool:
        """Keep ``source`` for the next iterator, unless one with workers is kept or in
        use already.
        """
        others = [
            other for other in self.iterators if other is not iterator and other.source is not None
        ]
        if self.idle is not None or others or self.loader() is None:
            return False
        self.idle = source
        return True

    def draw_seed(self, template: Any) -> None:
        """Draw what torch's own iterator would draw here for its workers."""
        torch = self._data.torch
        torch.empty((), dtype=torch.int64).random_(generator=template.generator)

    def private_generator(self) -> Any:
        self.rebuilds += 1
        torch = self._data.torch
        # where torch will draw with it: the job may have set a default device
        device = torch.empty(()).device
        return torch.Generator(device).manual_seed(mixed_seed(self.seed, self.rebuilds))
