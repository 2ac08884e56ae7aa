"""The iterator the job gets instead of torch's: its source can be rebuilt while the loop runs.

    for batch in loader:          DataLoader._get_iterator ──▶ SwitchableIterator
                                        │ __next__                     │ delegates
                                        ▼                              ▼
        settings changed? ── no ──▶ source.__next__        torch's own iterator over a *shadow* of the loader, a copy
              │ yes                                        whose settings are written through __dict__ and whose
              └─▶ undelivered indices back to the          sampler is an IndexStream
                  stream, workers ended, source rebuilt

As long as no setting differs from the job's own, the source is the one torch would have built; it
gets the same indices and draws the same random numbers. Like torch's own, the iterator holds no
reference to the loader, so workers end when the job drops either.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.events import GivenBatch
from autotune_trials.agent.dataloader.batch_seeds import EpochSeeds, workers_find_us
from autotune_trials.agent.dataloader.facts import Settings, is_iterable, rebatches
from autotune_trials.agent.dataloader.index_stream import IndexStream
from autotune_trials.agent.dataloader.kept_batches import KeptBatches
from autotune_trials.agent.dataloader.sources import SourceBuilder, shadow_of
from autotune_trials.agent.dataloader.tracked_loader import IteratorMark, TrackedLoader
from autotune_trials.agent.dataloader.worker_ends import (
    end_half_started,
    end_workers,
    ended_or_too_many,
)
from autotune_trials.agent.loop.batches import samples_of, weight_of

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.hooks import LoaderHooks

_END = object()


class SwitchableIterator:
    """See the module's docstring; :func:`iterator_class` makes it one of torch's iterators, whose
    ``__init__`` is not called.
    """

    def __init__(self, hooks: LoaderHooks, tracked: TrackedLoader, loader: Any) -> None:
        self._hooks, self._choice = hooks, hooks.choice
        self._overrides, self._serving = hooks.overrides, hooks.serving
        self._tracked = tracked
        self.source: Any = None
        self.mark = IteratorMark(weakref.ref(self), tracked)
        self._process = os.getpid()
        self.credited = False  # one of its batches was followed by backward
        self._iterations_before = hooks.loop_state.iterations  # when this pass began
        self._kept = KeptBatches()
        # (batch, samples, waited) fetched before the job asked
        self._ahead: deque[tuple[Any, float, float]] = deque()
        # the job's dataset raised it while we fetched ahead
        self._failure: BaseException | None = None
        self._special = True  # the next batch needs _next_special
        self._exhausted = False
        self._version = 0
        # time to start the epoch, until its first batch is given
        self._start_s: float | None = None
        self._rebuilding_since: float | None = None
        tracked.iterators.add(self)
        self._begin(loader, new=True)

    # -- one batch

    def __next__(self) -> Any:
        hooks, tracked, choice = self._hooks, self._tracked, self._choice
        events, loop_state = hooks.events, hooks.loop_state
        if events.went_on and not loop_state.in_backward:
            hooks.tell(events.went_on)
        hooks.tell(events.batch_requested, tracked)
        asked = clock()
        loop_state.fetching = get_ident()
        try:
            if self._special or self._version != self._overrides.version:
                return self._next_special(asked)
            batch = self._fetched()
            if batch is _END:
                return self._turn(asked)
            wait_s = clock() - asked
            tracked.mark = choice.last = self.mark
            choice.given += 1
            try:
                given = GivenBatch(tracked, batch, self._samples(batch), wait_s)
                for hear in hooks.events.batch_given:
                    hear(given)
            except Exception:
                hooks.step_aside("DataLoader.__next__")
            return batch
        finally:  # the epoch's end and the job's own errors leave here, too
            loop_state.fetching = 0

    def _fetched(self) -> Any:
        """The next batch of the source, or _END."""
        try:
            return self.source.__next__()
        except StopIteration:
            return _END
        except Exception as error:
            if not self._may_go_back(error):
                raise
            return self._go_back()

    def _next_special(self, asked: float) -> Any:
        """The batch requested at ``asked`` when it is the first of a source, a switch is due,
        or batches are cached.
        """
        hooks, serving, tracked = self._hooks, self._serving, self._tracked
        if self._exhausted:
            raise StopIteration
        if self._ahead:
            return self._give(*self._ahead.popleft(), None)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._version != self._overrides.version:
            self._adjust()
        # the last attempt to build it raised the job's own error
        if self.source is None:
            self._build(self._own, private_seed=True)
        if serving.cached and self.credited and self._serves_kept():
            serving.withheld = False
            return self._give(*self._kept.next(), clock() - asked, None)
        try:
            if serving.to_drain:
                self._drain()
            batch = self.source.__next__()
        except StopIteration:
            batch = _END
        except Exception as error:
            if not self._may_go_back(error):
                raise
            batch = self._go_back()
        if batch is _END:
            return self._turn(asked)
        wait_s, turnover_s = clock() - asked, None
        if self._rebuilding_since is not None:
            serving.last_rebuild_s = clock() - self._rebuilding_since
            self._rebuilding_since = None
        if self._start_s is not None:
            hooks.own_s += self._choice.look_for_cycle(self, tracked)
            wait_s, self._start_s = wait_s + self._start_s, None
            before = tracked.epoch_before()
            if before is not None:
                wait_s, turnover_s, before.end_s = 0.0, wait_s + before.end_s, 0.0
        samples = self._samples(batch)
        if serving.cached and self.credited:
            self._kept.keep(batch, samples)
        if not tracked.batch.bytes:
            tracked.batch = weight_of(batch)
        self._special = serving.cached
        return self._give(batch, samples, wait_s, turnover_s)

    def _drain(self) -> None:
        """Discard the batches the workers have ready; a source that was just built has none."""
        serving = self._serving
        if self._rebuilding_since is None and self._start_s is None:
            while serving.drains(self):
                self.source.__next__()
                self.stream.delivered(self.source, self.settings.in_order)
                serving.to_drain -= 1
        if self is self._choice.iterator():
            serving.cancel_drain()

    def _give(self, batch: Any, samples: float, wait_s: float, turnover_s: float | None) -> Any:
        hooks, choice = self._hooks, self._choice
        self._tracked.mark = choice.last = self.mark
        choice.given += 1
        given = GivenBatch(self._tracked, batch, samples, wait_s, turnover_s)
        hooks.tell(hooks.events.batch_given, given)
        return batch

    def ahead(self, count: int) -> list[Any]:
        """Fetch the next ``count`` batches now, to hand out later; fewer at the end of the
        epoch, none if settings are about to change.
        """
        unchanged = self._version == self._overrides.version and not self._serving.cached
        if not self._exhausted and self.source is not None and unchanged:
            self._special = True
            while len(self._ahead) < count and self._failure is None:
                asked = clock()
                try:
                    batch = self._fetched()
                except Exception as error:
                    self._failure = error  # raised when the job asks for this batch
                    break
                if batch is _END:
                    break  # the source ends again when the job gets there
                self._ahead.append((batch, self._samples(batch), clock() - asked))
        return [batch for batch, _, _ in self._ahead][:count]

    def _stepped(self) -> bool:
        """Whether an iteration has ended in this pass: a loop that does not end trains on."""
        return self._hooks.loop_state.iterations != self._iterations_before

    def _serves_kept(self) -> bool:
        """Whether batches come from memory; the pass then does not end."""
        return self._kept.served > 0 or (self._stepped() and self._kept.full())

    def _samples(self, batch: Any) -> float:
        stream = self.stream
        item = stream.delivered(self.source, self.settings.in_order)
        if type(item) is list and not stream.iterable:
            return float(len(item))  # exact, whatever the collate function returns
        try:
            return samples_of(batch, stream.size)
        except Exception:  # a tensor without a shape, such as a nested one
            return float(stream.size or 1)

    # -- epochs

    def _begin(self, loader: Any, new: bool) -> None:
        """Start an epoch as the job requests it: ``new`` by ``iter(loader)``, else by torch's
        ``_reset``.
        """
        began, hooks, tracked, data = clock(), self._hooks, self._tracked, self._hooks.data
        hooks.thread = get_ident()
        hooks.tell(hooks.events.epoch_started, tracked)
        self._exhausted, self.credited = False, False
        self._iterations_before = hooks.loop_state.iterations
        self._failure = None
        self._ahead.clear()
        self.template = template = shadow_of(data, loader)
        self._own = Settings.of(template)
        self._version = self._overrides.version
        # also covers a subclass that sets its own sampler after construction
        tracked.note_batch_size(template)
        want, size = self._overrides.wanted(tracked, self._own, template)
        if new:
            self.stream = IndexStream(
                template._index_sampler,
                rebatches=rebatches(data, template),
                size=size,
                iterable=is_iterable(data, template),
            )
        self.stream.size = size
        self._sources = SourceBuilder(hooks, tracked, template, self._own, self.stream)
        tracked.passes += 1
        self.stream.seeds = self._epoch_seeds()
        self._start(want, starts=2 if new and self._own.num_workers else 1, draws_seed=new)
        self._special, self._start_s, self._rebuilding_since = True, clock() - began, None

    def _epoch_seeds(self) -> EpochSeeds | None:
        """The batch seeds of the epoch that begins; None unless random numbers of batches are
        matched.
        """
        hooks, template = self._hooks, self.template
        if (
            not hooks.match_streams
            or self.stream.iterable
            or not workers_find_us(template.multiprocessing_context)
        ):
            return None
        generator = template.generator or hooks.data.torch.default_generator
        return EpochSeeds(generator, self._tracked.passes)

    def _start(self, want: Settings, starts: int, draws_seed: bool) -> None:
        """Put a source on the stream, from its beginning. ``starts``, ``draws_seed``: how often
        the job's own iterator would start the sampler here, and whether it would draw a seed
        for its workers.
        """
        stream, tracked = self.stream, self._tracked
        stream.begin(starts)
        idle = self.source if self.source is not None else tracked.take_idle(self.template)
        if idle is not None and want.persistent_workers and self._reusable(idle, want):
            if draws_seed:
                iter(stream)
                tracked.draw_seed(self.template)
            self.settings, stream.tracks = want, not stream.iterable
            idle._index_sampler = stream
            self.source = idle
            idle._reset(self._sources.shadow(want))
            return
        end_workers(idle)
        self.source = None
        self._build(want, private_seed=not draws_seed)

    def _reusable(self, idle: Any, want: Settings) -> bool:
        return (
            not getattr(idle, "_shutdown", True)
            and getattr(idle, "_autotune_settings", want) == want
        )

    def _turn(self, asked: float) -> Any:
        """The source has ended: end the job's epoch, or stretch it by restarting the source."""
        hooks, serving, tracked = self._hooks, self._serving, self._tracked
        hooks.tell(hooks.events.epoch_ended, tracked)
        stepped, self._iterations_before = self._stepped(), hooks.loop_state.iterations
        serving.withheld = serving.withheld or (serving.cached and self.credited and not stepped)
        if serving.stretch and stepped and self.credited and tracked.training:
            persistent = self._own.persistent_workers and self._own.num_workers > 0
            tracked.passes += 1
            starts = 2 if self._own.num_workers and not persistent else 1
            self._start(self.settings, starts, draws_seed=not persistent)
            batch = self._fetched()
            if batch is not _END:
                lost_s, tracked.end_s = clock() - asked + tracked.end_s, 0.0
                return self._give(batch, self._samples(batch), 0.0, lost_s)
        self._exhausted = self._special = True
        self._park()
        if self._kept_by_knob():  # another iterator of this loader has workers
            end_workers(self.source)
        tracked.end_s += clock() - asked
        raise StopIteration

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Called by torch for the next epoch of a job that itself sets persistent_workers."""
        self._begin(loader, new=False)

    # -- switching

    def _adjust(self) -> None:
        """Switch the source to the settings wanted now."""
        overrides, serving, stream = self._overrides, self._serving, self.stream
        self._version = overrides.version
        if not serving.cached:
            self._kept.clear()
        self._special = serving.cached or self._start_s is not None
        want, size = overrides.wanted(self._tracked, self._own, self.template)
        if want == self.settings and size == stream.size:
            return
        began, self._special = clock(), True
        if want == self.settings and (stream.iterable or want.num_workers == 0):
            stream.put_back([])  # nothing is in flight, or nothing that could be put back
            stream.size = size
        elif stream.iterable and want.num_workers == self.settings.num_workers == 0:
            # a new source would restart the dataset
            self._sources.pin_as(want, self.source)
            self.settings = want
            stream.size = size
        elif stream.iterable and (overrides.held or overrides.closed):
            stream.size = size  # a new source would restart the dataset: at the next epoch
            if want != self.settings and not overrides.closed:
                overrides.wait_for_next_epoch(want)
            return
        else:
            undelivered = [] if stream.iterable else stream.undelivered(self.source)
            end_workers(self.source)
            self.source = None
            stream.put_back(undelivered)
            stream.size = size
            self._build(want, private_seed=True)
        self._rebuilding_since = began

    def _may_go_back(self, error: Exception) -> bool:
        """Whether workers failed under settings other than the job's own, which may then be
        restored.
        """
        return self.settings != self._own and ended_or_too_many(error)

    def _go_back(self) -> Any:
        """After workers have ended, the next batch under the job's own settings. Called inside
        the error handler.
        """
        stream, want = self.stream, self.settings
        self._overrides.refuse(self._tracked, want)  # while it can be seen how the workers ended
        undelivered = (
            [] if stream.iterable else stream.undelivered_or_failed(self.source, want.in_order)
        )
        end_workers(self.source)
        self.source = None
        stream.put_back(undelivered)
        self.source = self._built(self._own, private_seed=True)
        self._special = True
        try:
            return self.source.__next__()
        except StopIteration:
            return _END

    def _build(self, want: Settings, private_seed: bool) -> None:
        """Build the source with ``want``; if that fails, with the job's own settings."""
        try:
            self.source = self._built(want, private_seed)
        except Exception as error:
            if want == self._own:
                raise  # the job's own error: its dataset, its sampler, its worker start
            end_half_started(error)
            self.stream.put_back(self.stream.handed())
            self.source = self._built(self._own, private_seed)
            self._overrides.refuse(self._tracked, want)

    def _built(self, want: Settings, private_seed: bool) -> Any:
        self.settings = want
        return self._sources.build(want, private_seed)

    # -- the end

    def _kept_by_knob(self) -> bool:
        """Whether a knob, not the job, keeps its workers beyond the epoch."""
        own = self._own.persistent_workers and self._own.num_workers > 0
        running = not getattr(self.source, "_shutdown", True)
        return self.settings.persistent_workers and not own and running

    def _park(self) -> None:
        """Leave workers that a knob made persistent to the loader's next iterator."""
        self._hooks.training_source.left(self)
        keep = self._kept_by_knob() and not self._overrides.closed
        if keep and self._tracked.park(self.source, self):
            self.source = None

    def hand_over(self) -> Any:
        """The source, if it has delivered its whole epoch and the job has only not asked for
        the end: a loop that counts its batches never does.
        """
        source = self.source
        left = getattr(source, "_tasks_outstanding", True) or source._task_info or self._ahead
        if left or self._failure is not None or self.stream.iterable:
            return None
        if not self.settings.persistent_workers or self._process != os.getpid():
            return None
        self._hooks.training_source.left(self)
        self.source, self._exhausted, self._special = None, True, True
        return source

    # the default: at the interpreter's end a module's globals may be gone
    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        try:
            if self._process != os.getpid():
                return
            hooks = self._hooks
            if self._choice.last is self.mark:
                hooks.tell(hooks.events.iterator_dropped, self._tracked)
            if self.source is not None:
                self._park()
                hooks.end_dropped(self._tracked, self.source)
        except Exception:
            if not _ending():  # torch's own iterator handles that itself
                log.write_exception("dropped iterator")

    # -- the rest of torch's iterator interface

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__.get("source")
        if source is None:
            raise AttributeError(name)
        return getattr(source, name)

    def _next_index(self) -> Any:
        return self.source._next_index()

    def _next_data(self) -> Any:
        return self.source._next_data()

    def __len__(self) -> int:
        return len(self.stream)


@functools.cache
def iterator_class(data: Any) -> type:
    """SwitchableIterator as an iterator of ``data``, the module torch.utils.data.dataloader. Built
    late, so that torch is not imported with this module.
    """
    return type("SwitchableIterator", (SwitchableIterator, data._BaseDataLoaderIter), {})
