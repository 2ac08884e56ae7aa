"""Builds torch's own iterators, the sources that SwitchableIterator hands batches out of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.dataloader.batch_seeds import SeededFetcher
from autotune_trials.agent.dataloader.facts import Settings
from autotune_trials.agent.dataloader.index_stream import IndexStream
from autotune_trials.agent.dataloader.workers_copy import workers_copy

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.hooks import LoaderHooks
    from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader


class SourceBuilder:
    """Builds the sources of one epoch of a loader, over ``stream`` instead of its sampler.

    ``template`` is a shadow of the loader as the epoch begins, ``own`` are its settings.
    """

    def __init__(
        self,
        hooks: LoaderHooks,
        tracked: TrackedLoader,
        template: Any,
        own: Settings,
        stream: IndexStream,
    ) -> None:
        self._template, self._own = template, own
        self._data, self._hooks, self._tracked, self._stream = hooks.data, hooks, tracked, stream

    def build(self, want: Settings, private_seed: bool) -> Any:
        """A source with the settings ``want``.

        ``private_seed``: the job's own iterator would draw nothing from its generator here.
        """
        hooks, stream, tracked = self._hooks, self._stream, self._tracked
        shadow = self.shadow(want)
        if private_seed:
            shadow.__dict__["generator"] = tracked.private_generator()
        stream.tracks = want.num_workers > 0 and not stream.iterable
        hooks.meters.attaching = hooks.meters.of(tracked.key)
        try:
            source = self._iterator_over(shadow, want)
        finally:
            hooks.meters.attaching = None
        if stream.seeds is not None and want.num_workers == 0:
            source._dataset_fetcher = SeededFetcher(source._dataset_fetcher, stream, hooks)
        source._autotune_settings = want
        source._autotune_copied = workers_copy(shadow) if want.persistent_workers else None
        tracked.seed = int(source._base_seed)
        return source

    def _iterator_over(self, shadow: Any, want: Settings) -> Any:
        if want == self._own:
            return self._hooks.original_get_iterator(shadow)
        # not through the loader, which would warn of more workers than cores
        if want.num_workers:
            return self._data._MultiProcessingDataLoaderIter(shadow)
        return self._data._SingleProcessDataLoaderIter(shadow)

    def pin_as(self, want: Settings, source: Any) -> None:
        """Switch ``source``, which has no workers, to the pinning of ``want``."""
        shadow = self.shadow(want)
        shadow.__dict__["generator"] = self._tracked.private_generator()
        probe = self._data._BaseDataLoaderIter(shadow)
        source._pin_memory = probe._pin_memory
        source._pin_memory_device = probe._pin_memory_device
        source._autotune_settings = want

    def shadow(self, want: Settings) -> Any:
        """A copy of the loader with the settings ``want``, whose sampler is the stream."""
        shadow = shadow_of(self._data, self._template)
        want.write(shadow, self._own)
        shadow.__dict__["batch_sampler" if shadow._auto_collation else "sampler"] = self._stream
        if shadow._index_sampler is not self._stream:
            raise TypeError(f"{type(shadow).__name__} overrides _index_sampler")
        return shadow


def shadow_of(data: Any, loader: Any) -> Any:
    """A copy of ``loader`` for torch's iterators to read at any time. Iterators stored on it are
    left out: they hold workers.
    """
    kind: Any = type(loader)
    own_lookup = kind.__getattribute__ is not object.__getattribute__ or hasattr(kind, "dataset")
    shadow = object.__new__(_shadow_class(kind) if own_lookup or hasattr(kind, "__del__") else kind)
    shadow.__dict__.update(
        (name, value)
        for name, value in loader.__dict__.items()
        if not isinstance(value, data._BaseDataLoaderIter)
    )
    if own_lookup:
        shadow.__dict__["dataset"] = loader.dataset
    shadow.__dict__["_iterator"] = None
    return shadow


@functools.cache
def _shadow_class(kind: Any) -> Any:
    """A subclass of ``kind`` whose ``dataset`` is the one in its ``__dict__``, for classes that
    compute it on each access: RecBole's differs outside its ``__iter__``. Its end closes nothing
    that the loader still uses.
    """
    if getattr(kind, "_autotune_shadow", False):
        return kind

    class Shadow(kind):
        _autotune_shadow = True

        def __del__(self) -> None: ...

        def __getattribute__(self, name: str) -> Any:
            if name == "dataset":
                return object.__getattribute__(self, "__dict__")[name]
            return super().__getattribute__(name)

    return Shadow
