"""The settings that override the job's own, and which of them each DataLoader gets."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from autotune_trials.agent.dataloader.facts import Settings, is_iterable, own_batch_size, rebatches
from autotune_trials.agent.dataloader.reports import LoaderReports
from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader
from autotune_trials.agent.dataloader.tracked_loaders import TrackedLoaders
from autotune_trials.agent.dataloader.worker_safety import (
    fixed_seeds,
    open_file,
    own_generator,
    shards,
    starts_anew,
)
from autotune_trials.protocol.messages import SessionConfig, SessionMode


class LoaderOverrides:
    """Settings for the loaders of one family. Every other loader keeps the job's own, as does one
    that cannot take them.
    """

    def __init__(
        self, data: Any, config: SessionConfig, loaders: TrackedLoaders, reports: LoaderReports
    ) -> None:
        self._data, self._loaders, self._reports = data, loaders, reports
        # settings are fixed from the start, and epochs end as usual
        self.held = config.mode != SessionMode.LIVE
        self.values: dict[str, Any] = {}
        self.selected = config.loader_key  # key of the family they are for
        self.version = 0  # incremented on every change that iterators must react to
        self.closed = False
        self._launched = config.mode == SessionMode.LAUNCH
        # the family whose workers the search saw sharding their data; a launched job may read
        # another dataset by now
        self._searched = "" if self._launched else config.loader_key

    def update(self, settings: Mapping[str, Any]) -> None:
        """Override with ``settings``; None restores the job's own value. Running iterators react at
        their next batch, loaders not yet iterated at once.
        """
        before = dict(self.values)
        for name, value in settings.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        if self.values == before:
            return
        self.notify_iterators()
        for tracked in self._loaders:
            tracked.refused = None
            if self.held and tracked.passes == 0:
                self._hold_batch_size(tracked, tracked.loader())

    def select(self, key: str) -> None:
        """Override the settings of the family ``key``."""
        if self.selected != key:
            self.selected = key
            self.notify_iterators()

    def notify_iterators(self) -> None:
        """Have running iterators adjust at their next batch."""
        self.version += 1

    def close(self) -> None:
        """Override nothing any more."""
        self.closed = True
        self.values.clear()
        self.notify_iterators()

    # -- what a loader gets

    def wanted(
        self, tracked: TrackedLoader, own: Settings, template: Any
    ) -> tuple[Settings, int | None]:
        """Settings and batch size in force for ``tracked``."""
        if self.closed or tracked.key != self.selected or not self.values:
            return own, tracked.batch_size
        want = own.override(self.values)
        if want != tracked.refused and (why := self._no_workers(tracked, own, want, template)):
            tracked.refused = want
            self._reports.refusal(f"num_workers={want.num_workers}", why)
        if self._launched and not self.fits_batch_size(tracked):
            self._reports.refusal(
                f"batch_size={self.values.get('batch_size')}",
                "this batch size was tuned for a loader with"
                f" batch_size={self.values['own_batch_size']}; DataLoader {tracked.key} has"
                f" batch_size={tracked.batch_size}",
            )
        return (own if want == tracked.refused else want), self.batch_size(tracked, template)

    def _no_workers(
        self, tracked: TrackedLoader, own: Settings, want: Settings, template: Any
    ) -> str:
        """Why the workers in ``want`` would harm the job, "" if they would not."""
        # such workers would train too, and the job would wait for a batch forever
        if want.num_workers and not own.num_workers:
            if why := starts_anew(template.multiprocessing_context):
                return f"each worker would re-run the whole training script: {why}"
            if generator := own_generator(template):
                return f"every worker would draw the same random numbers from {generator}"
            if function := fixed_seeds(template):
                return (
                    f"the job's worker_init_fn ({function}) would give the workers the same seeds"
                    " in every epoch"
                )
            if file := open_file(template):
                return (
                    f"all workers would share the position in {file}, which the dataset keeps open"
                )
        if (
            max(want.num_workers, 1) != max(own.num_workers, 1)
            and is_iterable(self._data, template)
            and tracked.key != self._searched
            and not shards(template.dataset, template.worker_init_fn)
        ):
            return (
                f"{type(template.dataset).__name__} is an IterableDataset that does not split its"
                " data by get_worker_info(): every worker would read every sample"
            )
        return ""

    def refuse(self, tracked: TrackedLoader, want: Settings) -> None:
        """``want`` could not be used: report it, and keep this loader at the job's settings."""
        tracked.refused = want
        self._reports.refusal(_in_words(want), traceback.format_exc())

    def wait_for_next_epoch(self, want: Settings) -> None:
        """Report that ``want`` is not used in this epoch of an IterableDataset."""
        self._reports.refusal(
            _in_words(want),
            "until its next epoch: an IterableDataset cannot be switched within one, and this"
            " DataLoader was recognized only while it was read",
            kind="later",  # in a fixed run the epochs that count may have them
        )

    # -- batch sizes

    def fits_batch_size(self, tracked: TrackedLoader) -> bool:
        """Whether the batch size override is for ``tracked``: it was found for loaders with the
        same own batch size.
        """
        return self.values.get("own_batch_size") in (None, tracked.batch_size)

    def batch_size(self, tracked: TrackedLoader, template: Any) -> int | None:
        size = self.values.get("batch_size")
        if (
            size is None
            or tracked.batch_size is None
            or tracked.key != self.selected
            or self.closed
        ):
            return tracked.batch_size
        fits = self.fits_batch_size(tracked) and rebatches(self._data, template)
        return int(size) if fits else tracked.batch_size

    def loader_built(self, tracked: TrackedLoader, loader: Any) -> None:
        if self.held and self.values.get("batch_size") is not None:
            self._hold_batch_size(tracked, loader)

    def _hold_batch_size(self, tracked: TrackedLoader, loader: Any) -> None:
        """Write the batch size into a loader not yet iterated, so that its len() is right."""
        if loader is None or tracked.key != self.selected or not rebatches(self._data, loader):
            return
        tracked.note_batch_size(loader)
        self._write_batch_size(tracked, loader, self.batch_size(tracked, loader))

    def restore_batch_size(self, tracked: TrackedLoader) -> None:
        loader = tracked.loader()
        if loader is not None and tracked.holds_batch_size and rebatches(self._data, loader):
            self._write_batch_size(tracked, loader, tracked.batch_size)

    def _write_batch_size(self, tracked: TrackedLoader, loader: Any, size: int | None) -> None:
        tracked.holds_batch_size = size != tracked.batch_size
        if size != own_batch_size(self._data, loader):
            sampler = loader.batch_sampler
            loader.__dict__["batch_sampler"] = self._data.BatchSampler(
                sampler.sampler, size, sampler.drop_last
            )
            if loader.batch_size is not None:
                loader.__dict__["batch_size"] = size


def _in_words(want: Settings) -> str:
    return ", ".join(f"{k}={value}" for k, value in want._asdict().items())
