"""All DataLoaders of the job, and which of them are of one family."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.dataloader.facts import is_iterable
from autotune_trials.agent.dataloader.tracked import TrackedLoader

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.hooks import LoaderHooks


class TrackedLoaders:
    """The loaders that exist. Those built alike at the same place are of one family, whose key is
    that of the first.
    """

    def __init__(self, hooks: LoaderHooks) -> None:
        self._hooks = hooks
        self._states: dict[int, TrackedLoader] = {}  # by the loader's id
        self._built: dict[str, int] = {}  # by site
        self._families: dict[Any, str] = {}

    def __iter__(self) -> Iterator[TrackedLoader]:
        return iter(list(self._states.values()))

    def find(self, loader: Any) -> TrackedLoader | None:
        state = self._states.get(id(loader))
        return state if state is not None and state.loader() is loader else None

    def track(self, loader: Any, site: str, spot: Any) -> TrackedLoader:
        """Track ``loader``, which was built at ``site``, until the job drops it."""
        data, origin = self._hooks.data, self._origin(loader)
        if origin is not None:
            site, spot = origin.site, origin.spot
        number = self._built.get(site, 0)
        self._built[site] = number + 1
        state = TrackedLoader(self._hooks, loader, site, number)
        state.spot = spot
        if origin is not None:  # its batch sampler may have another size by now
            state.batch_size = origin.batch_size
            state.holds_batch_size = origin.holds_batch_size
        state.note_batch_size(loader)
        try:
            length = None if is_iterable(data, loader) else len(loader.dataset)
        except Exception:
            length = None
        family = (
            site,
            type(loader.dataset),
            length,
            type(loader.sampler),
            state.batch_size,
            loader.drop_last,
        )
        state.key = self._families.setdefault(family, state.key)
        identity, states = id(loader), self._states
        states[identity] = state

        def forget(_: Any) -> None:
            if states.get(identity) is state:
                del states[identity]
            idle, state.idle = state.idle, None
            self._hooks.end_dropped(state, idle)

        state.loader = weakref.ref(loader, forget)
        return state

    def _origin(self, loader: Any) -> TrackedLoader | None:
        """The loader that ``loader`` replaces: accelerate rebuilds each one around its batch
        sampler.
        """
        sampler = loader.batch_sampler
        for state in self:
            other = state.loader()
            if (
                sampler is not None
                and other is not None
                and state.passes == 0
                and other.batch_sampler is sampler
            ):
                return state
        return None
