"""Finds the DataLoader the job trains on and switches it while the loop runs.

What torch's DataLoader is patched with is in patches/loader.py, the events are in core/events.py.
The training loader is the one whose batches are followed by backward
(training_credit.py). Another loader replaces it only after three of its batches in a row were
followed by backward, so that a batch fetched before an evaluation does not briefly make the
evaluation loader the training loader. A job that rebuilds its loader for every epoch has one
*family* of loaders, whose key is that of the first.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from itertools import cycle
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_spaces.facts import LoaderFacts
from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.events import Events
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.dataloader.control import TrainingLoaderControl
from autotune_trials.agent.dataloader.facts import (
    Settings,
    describe,
    epoch_batches,
    is_iterable,
    own_batch_size,
    rebatches,
)
from autotune_trials.agent.dataloader.reader_meter import ReaderMeter, Spent
from autotune_trials.agent.dataloader.tracked import IteratorMark, TrackedLoader
from autotune_trials.agent.dataloader.tracked_loaders import TrackedLoaders
from autotune_trials.agent.dataloader.worker_ends import end_workers
from autotune_trials.agent.dataloader.worker_safety import (
    fixed_seeds,
    open_file,
    own_generator,
    shards,
    starts_anew,
)
from autotune_trials.agent.facts.construction import BuiltAt
from autotune_trials.agent.patches.patch_set import PatchSet
from autotune_trials.protocol.messages import LOADER_SETTINGS, SessionConfig, SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.switchable_iterator import SwitchableIterator

CREDITS_TO_TAKE_OVER = 3
MOST_LOOKING_S = 1.0  # for an itertools.cycle, in all families together


class LoaderHooks:
    """State of the DataLoader patches, and their removal. See the module's docstring."""

    def __init__(
        self,
        data: Any,
        events: Events,
        config: SessionConfig,
        loop_state: LoopState,
        on_fault: Callable[[str, str], None],
        on_refusal: Callable[[str, str], None],
    ) -> None:
        self.data = data
        self.events = events
        self.loop_state = loop_state
        self._on_fault, self._on_refusal = on_fault, on_refusal
        self.patches = PatchSet()
        # settings are fixed from the start, and epochs end as usual
        self.held = config.mode != SessionMode.LIVE
        self.selected = config.loader_key  # key of the family the settings are for
        self._launched = config.mode == SessionMode.LAUNCH
        # the family whose workers the search saw sharding their data; a launched job may read
        # another dataset by now
        self._searched = "" if self._launched else config.loader_key
        self.overrides: dict[str, Any] = {}
        self.version = 0  # incremented on every change that iterators must react to
        self.match_streams = config.match_streams and config.mode in (
            SessionMode.FIXED,
            SessionMode.PROFILE,
        )
        self.stretch = False
        self.cached = False
        self.withheld = False  # a pass has ended without a step, so none was served from memory
        self.to_drain = 0  # batches to discard at the next request
        self.drain_until_s = 0.0
        self.own_s = 0.0  # the agent's own time while the job waited for a batch
        self.closed = False
        self.last: IteratorMark | None = None  # of the iterator that gave the last batch
        # batches given so far, and their number at the last backward
        self.given = self.credited = 0
        self.thread = 0  # id of the thread that begins the job's epochs
        self.training_loader: TrackedLoader | None = None
        self.facts: LoaderFacts | None = None  # of the training loader
        # class of a loader that overrides _get_iterator, perhaps unseen by us
        self.makes_iterators = ""
        self.last_rebuild_s = 0.0
        self.control = TrainingLoaderControl(self)
        self.metering: ReaderMeter | None = None  # of the source being built
        # whether the training loader's batches are kept by the job and given out again
        self.cycled = False
        self._cycles: dict[str, bool] = {}  # the same by family key, once looked at
        self._looking_s = 0.0  # time that took
        self._meters: dict[str, ReaderMeter] = {}  # by family key
        self._meters_wanted = config.mode in (SessionMode.LIVE, SessionMode.PROFILE)
        self._watched = config.mode == SessionMode.PROFILE
        self._training_iterator: Callable[[], SwitchableIterator | None] = lambda: None
        # what was in force in the training iterator that the job finished last
        self._left: tuple[Settings | None, dict[str, Any] | None] = (None, None)
        self._rival: tuple[str, int] = ("", 0)
        self._doubts = 0  # consecutive batches that met an evaluation before backward
        self._loaders = TrackedLoaders(self)
        self.original_get_iterator = data.DataLoader._get_iterator

    # -- what the agent asks and sets

    @property
    def training(self) -> TrainingLoaderControl | None:
        """The training loader's control; None while there is none (never None with settings fixed
        from the start).
        """
        return self.control if self.held or self.training_loader is not None else None

    @property
    def training_mark(self) -> IteratorMark | None:
        """Mark of the iterator that gave the latest batch, if it is the one trained on."""
        last = self.last
        return last if last is not None and last.iterator is self._training_iterator else None

    def set_stretch(self, on: bool) -> None:
        """Restart the training loader when it ends, so that the job's loop over it does not end.

        Only after a pass in which an iteration has ended: the job may step after its loop, with the
        gradient of all its data, or evaluate with gradients. Not if the job keeps every batch: it
        would run out of memory.
        """
        self.stretch = bool(on) and not self.cycled

    def serve_cached(self, on: bool) -> None:
        """Give the training loop copies of at most 8 batches instead of new ones, as a loader that
        costs nothing would.
        """
        if self.cached != bool(on):
            self.cached, self.withheld = bool(on), False
            self.version += 1

    def queue_depth(self) -> int:
        """Number of batches the workers of the training loader keep ready."""
        if self._training_iterator() is None:
            return 0
        settings = self.settings_in_force()
        return settings.num_workers * (settings.prefetch_factor or 0) if settings is not None else 0

    def settings_in_force(self) -> Settings | None:
        """Settings of the iterator that feeds training, or fed it last: between epochs there may be
        none. None before the first.
        """
        iterator = self._training_iterator()
        return iterator.settings if iterator is not None else self._left[0]

    def left(self, iterator: SwitchableIterator) -> None:
        """The job is done with ``iterator``, whose source is dropped next."""
        if iterator.mark.iterator is self._training_iterator:
            self._left = iterator.settings, _in_force(iterator)

    def batches_drawn(self) -> tuple[int, int]:
        """Of the training loader's epoch so far: (batches drawn from its sampler, how many of them
        its workers have not finished).
        """
        iterator = self._training_iterator()
        if iterator is None:
            return 0, 0
        source = iterator.source
        outstanding = getattr(source, "_tasks_outstanding", 0)
        if not outstanding:
            return iterator.stream.number, 0
        made, pinned = source._worker_result_queue, source._data_queue
        ready = made.qsize() + (pinned.qsize() if pinned is not made else 0)
        return iterator.stream.number, max(outstanding - ready, 0)

    def source_in_force(self) -> dict[str, Any] | None:
        """:meth:`settings_in_force` as read from the running source, with batch size and actual
        worker count.
        """
        iterator = self._training_iterator()
        if iterator is None or iterator.source is None:
            return self._left[1]
        return _in_force(iterator)

    def reader_spent(self) -> Spent:
        """Time spent fetching batches of the training loader so far."""
        tracked = self.training_loader
        meter = self._meters.get(tracked.key) if tracked is not None else None
        return meter.spent() if meter is not None else Spent()

    def meter_of(self, tracked: TrackedLoader) -> ReaderMeter | None:
        """The meter for the fetches of ``tracked``; None if no one reads it, or there is no memory
        for it.
        """
        if not self._meters_wanted or self.closed:
            return None
        try:
            if tracked.key not in self._meters:
                self._meters[tracked.key] = ReaderMeter(decoding=self._watched)
            return self._meters[tracked.key]
        except OSError:
            return None

    def drain(self, limit_s: float) -> None:
        """Discard the batches the workers keep ready, for at most ``limit_s``, when the job asks
        for the next one; the end of the epoch stops it. The job sees later batches, and the
        discarded samples are not counted.
        """
        if self.stretch and not self.cached:
            self.to_drain, self.drain_until_s = self.queue_depth(), perf_counter() + limit_s
            self.version += bool(self.to_drain)

    def cancel_drain(self) -> None:
        self.to_drain = 0

    def drains(self, iterator: SwitchableIterator) -> bool:
        """Whether ``iterator`` should discard a batch."""
        return (
            self.to_drain > 0
            and iterator is self._training_iterator()
            and perf_counter() < self.drain_until_s
        )

    def epoch_iterations(self) -> int | None:
        """Batches per epoch of the training loader under the current settings; None if unknown."""
        tracked, iterator = self.training_loader, self._training_iterator()
        template = (
            iterator.template
            if iterator is not None
            else tracked.loader()
            if tracked is not None
            else None
        )
        if tracked is None or template is None:
            return self.facts.length if self.facts is not None else None
        return epoch_batches(self.data, template, self._size(tracked, template))

    def credit_backward(self, doubtful: bool = False) -> None:
        """A backward ran: the loader of the latest batch is trained on.

        ``doubtful``: that batch met an evaluation first. It may have been fetched only for that, by
        a job that trains without a DataLoader; if it happens again and again, a teacher model sees
        each batch first.
        """
        if self.given == self.credited or self.last is None:
            return
        self.credited = self.given
        self._doubts = self._doubts + 1 if doubtful else 0
        if 0 < self._doubts < CREDITS_TO_TAKE_OVER:
            return
        reference, tracked = self.last
        iterator = reference()
        if iterator is not None:
            iterator.credited = True
        if tracked is not self.training_loader:
            self._credit(tracked, iterator)
        elif self._rival[1]:
            self._rival = ("", 0)
        if iterator is not None and tracked is self.training_loader:
            self._training_iterator = reference

    def look_for_cycle(self, iterator: SwitchableIterator, tracked: TrackedLoader) -> None:
        """Find out whether ``iterator`` is in an itertools.cycle, which keeps its batches and reads
        it only once. Done once for each family, since it takes as long as a garbage collection, and
        no longer than MOST_LOOKING_S: a job may build hundreds of loaders (federated learning).
        """
        if self._launched or tracked.key in self._cycles or self._looking_s > MOST_LOOKING_S:
            return
        began = perf_counter()
        held = any(type(holder) is cycle for holder in gc.get_referrers(iterator))
        self._cycles[tracked.key] = held
        took_s = perf_counter() - began
        self.own_s += took_s
        self._looking_s += took_s

    def holder(self) -> TrackedLoader | None:
        """The training loader; before there is one, the loader with the configured key."""
        return self.training_loader or next(
            (s for s in self._loaders if s.key == self.selected), None
        )

    def _credit(self, tracked: TrackedLoader, iterator: SwitchableIterator | None) -> None:
        holder = self.holder()
        if holder is not None and holder.key != tracked.key and holder.loader() is not None:
            key, count = self._rival
            self._rival = (tracked.key, count + 1 if key == tracked.key else 1)
            if self._rival[1] < CREDITS_TO_TAKE_OVER:
                return
        self._rival = ("", 0)
        self.training_loader = tracked
        self.cycled = self._cycles.get(tracked.key, False)
        template = iterator.template if iterator is not None else tracked.loader()
        if template is not None:
            try:
                self.facts = describe(
                    self.data,
                    template,
                    tracked.key,
                    tracked.site,
                    tracked.batch_size,
                    tracked.batch,
                    self.cycled,
                )
            # the job's own sampler or dataset cannot be described; fault() tells the tuner
            except Exception:
                self.fault("loader facts")
        if self.selected != tracked.key:
            self.selected = tracked.key
            self.version += 1

    # -- what iterators ask

    def wanted(
        self, tracked: TrackedLoader, own: Settings, template: Any
    ) -> tuple[Settings, int | None]:
        """Settings and batch size in force for ``tracked``."""
        if self.closed or tracked.key != self.selected or not self.overrides:
            return own, tracked.batch_size
        want = own.override(self.overrides)
        if want != tracked.refused and (why := self._no_workers(tracked, own, want, template)):
            tracked.refused = want
            self._refusal(f"num_workers={want.num_workers}", why)
        if self._launched and not self.fits_batch_size(tracked):
            self._refusal(
                f"batch_size={self.overrides.get('batch_size')}",
                "this batch size was tuned for a loader with"
                f" batch_size={self.overrides['own_batch_size']}; DataLoader {tracked.key} has"
                f" batch_size={tracked.batch_size}",
            )
        return (own if want == tracked.refused else want), self._size(tracked, template)

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
            and is_iterable(self.data, template)
            and tracked.key != self._searched
            and not shards(template.dataset, template.worker_init_fn)
        ):
            return (
                f"{type(template.dataset).__name__} is an IterableDataset that does not split its"
                " data by get_worker_info(): every worker would read every sample"
            )
        return ""

    def fits_batch_size(self, tracked: TrackedLoader | None = None) -> bool:
        """Whether the batch size override is for ``tracked`` (default: the training loader): it was
        found for loaders with the same own batch size.
        """
        tracked, found_for = tracked or self.training_loader, self.overrides.get("own_batch_size")
        return tracked is None or found_for in (None, tracked.batch_size)

    def _size(self, tracked: TrackedLoader, template: Any) -> int | None:
        size = self.overrides.get("batch_size")
        if (
            size is None
            or tracked.batch_size is None
            or tracked.key != self.selected
            or self.closed
        ):
            return tracked.batch_size
        fits = self.fits_batch_size(tracked) and rebatches(self.data, template)
        return int(size) if fits else tracked.batch_size

    def changed(self) -> None:
        """The overrides have changed: running iterators react at the next batch, loaders not yet
        iterated at once.
        """
        self.version += 1
        for tracked in self._loaders:
            tracked.refused = None
            if self.held and tracked.passes == 0:
                self._hold_batch_size(tracked, tracked.loader())

    def _hold_batch_size(self, tracked: TrackedLoader, loader: Any) -> None:
        """Write the batch size into a loader not yet iterated, so that its len() is right."""
        if loader is None or tracked.key != self.selected or not rebatches(self.data, loader):
            return
        tracked.note_batch_size(loader)
        size = self._size(tracked, loader)
        tracked.holds_batch_size = size != tracked.batch_size
        if size != own_batch_size(self.data, loader):
            sampler = loader.batch_sampler
            loader.__dict__["batch_sampler"] = self.data.BatchSampler(
                sampler.sampler, size, sampler.drop_last
            )
            if loader.batch_size is not None:
                loader.__dict__["batch_size"] = size

    def tracked(self, loader: Any) -> TrackedLoader:
        # not known: a copy, or built before the hooks were installed
        return self._loaders.find(loader) or self.track(
            loader, f"{type(loader.dataset).__name__}:0"
        )

    def track(self, loader: Any, site: str, built_at: BuiltAt | None = None) -> TrackedLoader:
        tracked = self._loaders.track(loader, site, built_at)
        if self.held and self.overrides.get("batch_size") is not None:
            self._hold_batch_size(tracked, loader)
        return tracked

    def end_dropped(self, tracked: TrackedLoader, source: Any) -> None:
        """End the workers of ``source``, whose iterator or loader the job has dropped, as a loop
        that counts its batches does. The time this takes counts as lost between two epochs.
        """
        if getattr(source, "_shutdown", True) or self.thread != get_ident():
            end_workers(source)
            return
        began = perf_counter()
        self.tell(self.events.workers_ending, tracked)
        end_workers(source)
        self.tell(self.events.workers_ended, tracked)
        last = self.training_loader  # the same loader, if the job rebuilds it for every epoch
        tracked = last if last is not None and last.key == tracked.key else tracked
        tracked.end_s += perf_counter() - began

    # -- events and errors

    def tell(self, listeners: Sequence[Callable[..., None]], *about: Any) -> None:
        """Call the listeners of an event. An error in one stops the agent, not the job."""
        try:
            for hear in listeners:
                hear(*about)
        except Exception:
            self.step_aside("DataLoader events")

    def fault(self, where: str, trouble: str = "") -> None:
        """Report ``trouble``, a traceback; by default that of the exception being handled."""
        try:
            self._on_fault(where, trouble or traceback.format_exc())
        except Exception:
            log.write_exception(f"{where}, reporting")

    def _refusal(self, settings: str, why: str, kind: str = LOADER_SETTINGS) -> None:
        """Report that the job's own settings stay in force instead of ``settings``."""
        try:
            self._on_refusal(f"{kind} {settings}", why)
        except Exception:
            log.write_exception("reporting a refusal")

    def refuse(self, tracked: TrackedLoader, want: Settings) -> None:
        """``want`` could not be used: report it, and keep this loader at the job's settings."""
        tracked.refused = want
        self._refusal(_in_words(want), traceback.format_exc())

    def wait_for_next_epoch(self, want: Settings) -> None:
        """Report that ``want`` is not used in this epoch of an IterableDataset."""
        self._refusal(
            _in_words(want),
            "until its next epoch: an IterableDataset cannot be switched within one, and this"
            " DataLoader was recognized only while it was read",
            kind="later",  # in a fixed run the epochs that count may have them
        )

    def step_aside(self, where: str) -> None:
        """The agent's own code failed: report it and uninstall."""
        self.fault(where)
        self.uninstall()

    # -- patches

    def uninstall(self) -> None:
        """Remove every patch. Iterators still in use return to the job's own settings at their next
        batch; over an iterable dataset, at their next epoch if a new source is needed.
        """
        if self.closed:
            return
        self.closed, self.stretch, self.cached = True, False, False
        self.overrides.clear()
        self.version += 1
        self.events = Events()  # our iterators may still run
        self.patches.restore_all()
        for tracked in self._loaders:
            idle, tracked.idle = tracked.idle, None
            end_workers(idle)
            loader = tracked.loader()
            if loader is not None and tracked.holds_batch_size:
                self.selected = tracked.key
                self._hold_batch_size(tracked, loader)


def _in_force(iterator: SwitchableIterator) -> dict[str, Any]:
    source = iterator.source
    workers = len(getattr(source, "_workers", ()))
    return {
        **iterator.settings._asdict(),
        "num_workers": workers,
        "prefetch_factor": getattr(source, "_prefetch_factor", None) if workers else None,
        "batch_size": iterator.stream.size,
    }


def _in_words(want: Settings) -> str:
    return ", ".join(f"{k}={value}" for k, value in want._asdict().items())
