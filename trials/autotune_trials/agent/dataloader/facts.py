"""A DataLoader's settings, and the facts about it that the tuner decides from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from autotune_spaces.domains import DEFAULT_PREFETCH
from autotune_spaces.facts import LoaderFacts
from autotune_trials.agent.dataloader.index_stream import batches_in
from autotune_trials.agent.dataloader.worker_safety import (
    fixed_seeds,
    open_file,
    own_generator,
    shards,
    starts_anew,
)
from autotune_trials.agent.loop.batches import Weight

NOTHING = Weight()


class Settings(NamedTuple):
    """The settings from which an iterator's source is built (its batch size is in the index
    stream).
    """

    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    in_order: bool

    @classmethod
    def of(cls, loader: Any) -> Settings:
        return cls(
            int(loader.num_workers),
            loader.prefetch_factor,
            bool(loader.persistent_workers),
            bool(loader.pin_memory),
            bool(getattr(loader, "in_order", True)),
        )

    def override(self, overrides: Mapping[str, Any]) -> Settings:
        """These settings with ``overrides``. Without workers prefetch_factor and persistent_workers
        are dropped: torch refuses them then.
        """

        def pick(name: str) -> Any:
            value = overrides.get(name)
            return getattr(self, name) if value is None else value

        workers, pin = int(pick("num_workers")), bool(pick("pin_memory"))
        if workers == 0:
            return Settings(0, None, False, pin, self.in_order)
        prefetch = int(pick("prefetch_factor") or DEFAULT_PREFETCH)
        return Settings(
            workers, prefetch, bool(pick("persistent_workers")), pin, bool(pick("in_order"))
        )

    def write(self, shadow: Any, own: Settings) -> None:
        """Write into the ``__dict__`` of ``shadow``: a DataLoader's attributes are frozen once it
        is built.
        """
        if self == own:
            return
        shadow.__dict__.update(self._asdict())
        if self.num_workers == 0:
            shadow.__dict__["timeout"] = 0


def rebatches(data: Any, loader: Any) -> bool:
    """Whether batches come from exactly torch's BatchSampler, so that only its size need change."""
    return type(loader.batch_sampler) is data.BatchSampler


def is_iterable(data: Any, loader: Any) -> bool:
    return bool(loader._dataset_kind == data._DatasetKind.Iterable)


def own_batch_size(data: Any, loader: Any) -> int | None:
    """Batch size of ``loader``; None if the job's own batch sampler decides or nothing batches."""
    return int(loader.batch_sampler.batch_size) if rebatches(data, loader) else None


def epoch_batches(data: Any, loader: Any, size: int | None) -> int | None:
    """Batches per epoch of ``loader`` with ``size`` samples per batch; None if unknown."""
    try:
        if type(loader).__len__ is not data.DataLoader.__len__ and size == own_batch_size(
            data, loader
        ):
            return len(loader)
        if size is None or not rebatches(data, loader):
            return len(loader.dataset) if is_iterable(data, loader) else len(loader._index_sampler)
        samples = (
            len(loader.dataset) if is_iterable(data, loader) else len(loader.batch_sampler.sampler)
        )
        return batches_in(samples, size, loader.drop_last or loader.batch_sampler.drop_last)
    except Exception:  # no len(), or one of the job's own that raises
        return None


def describe(
    data: Any,
    loader: Any,
    key: str,
    site: str,
    size: int | None,
    batch: Weight = NOTHING,
    cycled: bool = False,
) -> LoaderFacts:
    """The facts of ``loader``. ``size``: the batch size the job built it with."""
    own, iterable = Settings.of(loader), is_iterable(data, loader)
    try:
        samples: int | None = len(loader.dataset)
    except Exception:
        samples = None
    own_sampler = loader.batch_sampler is not None and not rebatches(data, loader)
    sharding = not iterable or shards(loader.dataset, loader.worker_init_fn)
    return LoaderFacts(
        dataset=type(loader.dataset).__name__,
        site=site,
        key=key,
        batch_size=size,
        **own._asdict(),
        drop_last=bool(
            loader.drop_last or getattr(loader.batch_sampler, "drop_last", False) is True
        ),
        iterable=iterable,
        length=epoch_batches(data, loader, size),
        samples=samples,
        custom_batch_sampler=own_sampler,
        batch_sampler=type(loader.batch_sampler).__name__ if own_sampler else "",
        worker_sharding=sharding,
        starts_anew=starts_anew(loader.multiprocessing_context),
        own_generator=own_generator(loader),
        fixed_seeds=fixed_seeds(loader),
        open_file=open_file(loader),
        rank_samples=_sampled(data, loader),
        batch_mib=batch.bytes / 2**20,
        batch_tensors=batch.tensors,
        on_gpu=batch.on_gpu,
        cycled=cycled,
    )


def _sampled(data: Any, loader: Any) -> tuple[int, ...]:
    """(samples per epoch of this process's own sampler,); () if unknown."""
    if not rebatches(data, loader) or is_iterable(data, loader):
        return ()
    try:
        return (len(loader.batch_sampler.sampler),)
    except Exception:  # a sampler without len()
        return ()
