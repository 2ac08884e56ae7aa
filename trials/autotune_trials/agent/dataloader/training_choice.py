"""Chooses the loader trained on: the one whose batches are followed by backward.

Another loader replaces it only after three of its batches in a row were followed by backward, so
that a batch fetched before an evaluation does not briefly make the evaluation loader the training
loader. A job that rebuilds its loader for every epoch has one *family* of loaders, whose key is
that of the first.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_spaces.facts import LoaderFacts
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.dataloader.facts import describe
from autotune_trials.agent.dataloader.overrides import LoaderOverrides
from autotune_trials.agent.dataloader.reports import LoaderReports
from autotune_trials.agent.dataloader.tracked_loader import IteratorMark, TrackedLoader
from autotune_trials.agent.dataloader.tracked_loaders import TrackedLoaders
from autotune_trials.protocol.messages import SessionConfig, SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.dataloader.switchable_iterator import SwitchableIterator

CREDITS_TO_TAKE_OVER = 3
MOST_LOOKING_S = 1.0  # for an itertools.cycle, in all families together


class TrainingLoaderChoice(Listener):
    """See the module's docstring. The overrides are for the family of the chosen loader."""

    def __init__(
        self,
        data: Any,
        config: SessionConfig,
        loaders: TrackedLoaders,
        overrides: LoaderOverrides,
        reports: LoaderReports,
    ) -> None:
        self._data, self._loaders, self._overrides = data, loaders, overrides
        self._reports = reports
        self.loader: TrackedLoader | None = None  # the training loader
        self.facts: LoaderFacts | None = None  # about it
        # whether its batches are kept by the job and given out again
        self.cycled = False
        # a weak reference to the iterator trained on
        self.iterator: Callable[[], SwitchableIterator | None] = lambda: None
        self.last: IteratorMark | None = None  # of the iterator that gave the last batch
        self.given = 0  # batches so far
        self._credited = 0  # their number at the last backward
        self._looked_at = 0  # the last batch that met an evaluation
        self._doubts = 0  # consecutive batches that met an evaluation before backward
        self._rival: tuple[str, int] = ("", 0)
        # mark of the iterator last credited without doubt, and the pass of its loader
        self._settled: IteratorMark | None = None
        self._pass = 0
        self._cycles: dict[str, bool] = {}  # ``cycled`` by family key, once looked at
        self._looking_s = 0.0  # time that took
        self._looks = config.mode != SessionMode.LAUNCH

    def presumed(self) -> TrackedLoader | None:
        """The training loader; before there is one, the loader with the configured key."""
        selected = self._overrides.selected
        return self.loader or next((s for s in self._loaders if s.key == selected), None)

    # -- events

    def evaluated(self, entry: Entry, args: tuple[Any, ...]) -> None:
        self._looked_at = self.given

    def other_evaluated(self) -> None:
        self._looked_at = self.given

    def backward_ended(self) -> None:
        given, last = self.given, self.last
        if given == self._credited:
            return
        doubtful = self._looked_at == given
        if (
            last is not None
            and last is self._settled
            and last.loader.passes == self._pass
            and not doubtful
        ):
            self._credited = given  # the usual case: the same loader again
            return
        self.credit_backward(doubtful)
        trained_on = last is not None and last.iterator is self.iterator
        self._settled = last if trained_on and not doubtful else None
        self._pass = last.loader.passes if last is not None else 0

    # -- which loader is trained on

    def credit_backward(self, doubtful: bool = False) -> None:
        """A backward ran: the loader of the latest batch is trained on.

        ``doubtful``: that batch met an evaluation first. It may have been fetched only for that, by
        a job that trains without a DataLoader; if it happens again and again, a teacher model sees
        each batch first.
        """
        if self.given == self._credited or self.last is None:
            return
        self._credited = self.given
        self._doubts = self._doubts + 1 if doubtful else 0
        if 0 < self._doubts < CREDITS_TO_TAKE_OVER:
            return
        reference, tracked = self.last
        iterator = reference()
        if iterator is not None:
            iterator.credited = True
        if tracked is not self.loader:
            self._consider(tracked, iterator)
        elif self._rival[1]:
            self._rival = ("", 0)
        if iterator is not None and tracked is self.loader:
            self.iterator = reference

    def _consider(self, tracked: TrackedLoader, iterator: SwitchableIterator | None) -> None:
        """Choose ``tracked``, unless another loader was trained on until now."""
        before = self.presumed()
        if before is not None and before.key != tracked.key and before.loader() is not None:
            key, count = self._rival
            self._rival = (tracked.key, count + 1 if key == tracked.key else 1)
            if self._rival[1] < CREDITS_TO_TAKE_OVER:
                return
        self._rival = ("", 0)
        self.loader = tracked
        self.cycled = self._cycles.get(tracked.key, False)
        template = iterator.template if iterator is not None else tracked.loader()
        if template is not None:
            try:
                self.facts = describe(
                    self._data,
                    template,
                    tracked.key,
                    tracked.site,
                    tracked.batch_size,
                    tracked.batch,
                    self.cycled,
                )
            # the job's own sampler or dataset cannot be described; fault() tells the tuner
            except Exception:
                self._reports.fault("loader facts")
        self._overrides.select(tracked.key)

    def look_for_cycle(self, iterator: SwitchableIterator, tracked: TrackedLoader) -> float:
        """Find out whether ``iterator`` is in an itertools.cycle, which keeps its batches and reads
        it only once. Done once for each family, since it takes as long as a garbage collection, and
        no longer than MOST_LOOKING_S: a job may build hundreds of loaders (federated learning).
        Returns the seconds it took.
        """
        if not self._looks or tracked.key in self._cycles or self._looking_s > MOST_LOOKING_S:
            return 0.0
        began = perf_counter()
        held = any(type(holder) is cycle for holder in gc.get_referrers(iterator))
        self._cycles[tracked.key] = held
        took_s = perf_counter() - began
        self._looking_s += took_s
        return took_s
