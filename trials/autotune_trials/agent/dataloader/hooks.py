"""What the patches of the DataLoader, and the iterators they hand out, are built from.

What torch's DataLoader is patched with is in patches/loader.py, the events are in core/events.py.

    tracked_loaders  which loaders exist       training_choice  which of them is trained on
    overrides        the settings they get     training_source  what is in force there
    batch_serving    stretched epochs, cached and discarded batches
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any

from autotune_trials.agent.core.events import Events
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.dataloader.batch_serving import BatchServing
from autotune_trials.agent.dataloader.control import TrainingLoaderControl
from autotune_trials.agent.dataloader.overrides import LoaderOverrides
from autotune_trials.agent.dataloader.reader_meter import ReaderMeters
from autotune_trials.agent.dataloader.reports import LoaderReports
from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader
from autotune_trials.agent.dataloader.tracked_loaders import TrackedLoaders
from autotune_trials.agent.dataloader.training_choice import TrainingLoaderChoice
from autotune_trials.agent.dataloader.training_source import TrainingSource
from autotune_trials.agent.dataloader.worker_ends import end_workers
from autotune_trials.agent.facts.construction import BuiltAt
from autotune_trials.agent.patches.patch_set import PatchSet
from autotune_trials.protocol.messages import SessionConfig, SessionMode


class LoaderHooks:
    """The parts of the DataLoader hooks, the events they tell, and their removal."""

    def __init__(
        self,
        data: Any,
        events: Events,
        config: SessionConfig,
        loop_state: LoopState,
        on_fault: Callable[[str, str], None],
        on_refusal: Callable[[str, str], None],
    ) -> None:
        self.data, self.events, self.loop_state = data, events, loop_state
        self.reports = LoaderReports(on_fault, on_refusal)
        self.patches = PatchSet()
        self.original_get_iterator = data.DataLoader._get_iterator
        self.match_streams = config.match_streams and config.mode in (
            SessionMode.FIXED,
            SessionMode.PROFILE,
        )
        self.own_s = 0.0  # the agent's own time while the job waited for a batch
        self.thread = 0  # id of the thread that begins the job's epochs
        # class of a loader that overrides _get_iterator, perhaps unseen by us
        self.makes_iterators = ""
        self.meters = ReaderMeters(SessionMode(config.mode))
        self._loaders = TrackedLoaders(data, self.end_dropped)
        self.overrides = LoaderOverrides(data, config, self._loaders, self.reports)
        self.choice = TrainingLoaderChoice(
            data, config, self._loaders, self.overrides, self.reports
        )
        self.training_source = TrainingSource(data, self.choice, self.overrides, self.meters)
        self.serving = BatchServing(self.choice, self.overrides, self.training_source)
        self.control = TrainingLoaderControl(self.choice, self.overrides)

    @property
    def training(self) -> TrainingLoaderControl | None:
        """The training loader's control; None while there is none (never None with settings fixed
        from the start).
        """
        known = self.overrides.held or self.choice.loader is not None
        return self.control if known else None

    def tracked(self, loader: Any) -> TrackedLoader:
        # not known: a copy, or built before the hooks were installed
        return self._loaders.find(loader) or self.track(
            loader, f"{type(loader.dataset).__name__}:0"
        )

    def track(self, loader: Any, site: str, built_at: BuiltAt | None = None) -> TrackedLoader:
        tracked = self._loaders.track(loader, site, built_at, self.choice)
        self.overrides.loader_built(tracked, loader)
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
        last = self.choice.loader  # the same loader, if the job rebuilds it for every epoch
        tracked = last if last is not None and last.key == tracked.key else tracked
        tracked.end_s += perf_counter() - began

    def tell(self, listeners: Sequence[Callable[..., None]], *about: Any) -> None:
        """Call the listeners of an event. An error in one stops the agent, not the job."""
        try:
            for hear in listeners:
                hear(*about)
        except Exception:
            self.step_aside("DataLoader events")

    def step_aside(self, where: str) -> None:
        """The agent's own code failed: report it and uninstall."""
        self.reports.fault(where)
        self.uninstall()

    def uninstall(self) -> None:
        """Remove every patch. Iterators still in use return to the job's own settings at their next
        batch; over an iterable dataset, at their next epoch if a new source is needed.
        """
        if self.overrides.closed:
            return
        self.serving.close()
        self.meters.close()
        self.overrides.close()
        self.events = Events()  # our iterators may still run
        self.patches.restore_all()
        for tracked in self._loaders:
            idle, tracked.idle = tracked.idle, None
            end_workers(idle)
            self.overrides.restore_batch_size(tracked)
