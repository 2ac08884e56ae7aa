"""All DataLoaders of the job, and which of them are of one family."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.dataloader.facts import is_iterable
from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader
from autotune_trials.agent.facts.construction import BuiltAt

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.training_choice import TrainingLoaderChoice


class TrackedLoaders:
    """The loaders that exist. Those built alike at the same place are of one family, whose key is
    that of the first.
    """

    def __init__(self, data: Any, dropped: Callable[[TrackedLoader, Any], None]) -> None:
        """``dropped`` is called with a loader that the job has dropped, and its idle source."""
        self._data, self._dropped = data, dropped
        self._tracked: dict[int, TrackedLoader] = {}  # by the loader's id
        self._built: dict[str, int] = {}  # by site
        self._families: dict[Any, str] = {}

    def __iter__(self) -> Iterator[TrackedLoader]:
        return iter(list(self._tracked.values()))

    def find(self, loader: Any) -> TrackedLoader | None:
        tracked = self._tracked.get(id(loader))
        return tracked if tracked is not None and tracked.loader() is loader else None

    def track(
        self, loader: Any, site: str, built_at: BuiltAt | None, choice: TrainingLoaderChoice
    ) -> TrackedLoader:
        """Track ``loader``, which was built at ``site``, until the job drops it."""
        data, origin = self._data, self._origin(loader)
        if origin is not None:
            site, built_at = origin.site, origin.built_at
        number = self._built.get(site, 0)
        self._built[site] = number + 1
        tracked = TrackedLoader(data, choice, loader, site, number)
        tracked.built_at = built_at
        if origin is not None:  # its batch sampler may have another size by now
            tracked.batch_size = origin.batch_size
            tracked.holds_batch_size = origin.holds_batch_size
        tracked.note_batch_size(loader)
        try:
            length = None if is_iterable(data, loader) else len(loader.dataset)
        except Exception:
            length = None
        family = (
            site,
            type(loader.dataset),
            length,
            type(loader.sampler),
            tracked.batch_size,
            loader.drop_last,
        )
        tracked.key = self._families.setdefault(family, tracked.key)
        identity, known = id(loader), self._tracked
        known[identity] = tracked

        def forget(_: Any) -> None:
            if known.get(identity) is tracked:
                del known[identity]
            idle, tracked.idle = tracked.idle, None
            self._dropped(tracked, idle)

        tracked.loader = weakref.ref(loader, forget)
        return tracked

    def _origin(self, loader: Any) -> TrackedLoader | None:
        """The loader that ``loader`` replaces: accelerate rebuilds each one around its batch
        sampler.
        """
        sampler = loader.batch_sampler
        for tracked in self:
            other = tracked.loader()
            if (
                sampler is not None
                and other is not None
                and tracked.passes == 0
                and other.batch_sampler is sampler
            ):
                return tracked
        return None
