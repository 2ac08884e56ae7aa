"""What feeds training: settings in force, batches under way, and what reading them costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.dataloader.facts import Settings, epoch_batches
from autotune_trials.agent.dataloader.overrides import LoaderOverrides
from autotune_trials.agent.dataloader.reader_meter import ReaderMeters, Spent
from autotune_trials.agent.dataloader.training_choice import TrainingLoaderChoice

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.switchable_iterator import SwitchableIterator


class TrainingSource:
    """The source of the iterator that the job trains on, or of the one it finished last: between
    epochs there may be none.
    """

    def __init__(
        self,
        data: Any,
        choice: TrainingLoaderChoice,
        overrides: LoaderOverrides,
        meters: ReaderMeters,
    ) -> None:
        self._data, self._choice, self._overrides = data, choice, overrides
        self._meters = meters
        # what was in force in the training iterator that the job finished last
        self._left: tuple[Settings | None, dict[str, Any] | None] = (None, None)

    def settings_in_force(self) -> Settings | None:
        """None before the first iterator."""
        iterator = self._choice.iterator()
        return iterator.settings if iterator is not None else self._left[0]

    def actual_settings(self) -> dict[str, Any] | None:
        """:meth:`settings_in_force` as read from the running source, with batch size and actual
        worker count.
        """
        iterator = self._choice.iterator()
        if iterator is None or iterator.source is None:
            return self._left[1]
        return _in_force(iterator)

    def left(self, iterator: SwitchableIterator) -> None:
        """The job is done with ``iterator``, whose source is dropped next."""
        if iterator.mark.iterator is self._choice.iterator:
            self._left = iterator.settings, _in_force(iterator)

    def queue_depth(self) -> int:
        """Number of batches the workers keep ready."""
        if self._choice.iterator() is None:
            return 0
        settings = self.settings_in_force()
        return settings.num_workers * (settings.prefetch_factor or 0) if settings is not None else 0

    def batches_drawn(self) -> tuple[int, int | None]:
        """Of the epoch so far: (batches drawn from the loader's sampler, how many its workers are
        behind a full queue).

        None: no workers, or the epoch's last batches are drawn and not every worker has one left.
        """
        iterator = self._choice.iterator()
        if iterator is None:
            return 0, None
        source, number = iterator.source, iterator.stream.number
        outstanding = getattr(source, "_tasks_outstanding", 0)
        if not outstanding:
            return number, None
        made, pinned = source._worker_result_queue, source._data_queue
        ready = made.qsize() + (pinned.qsize() if pinned is not made else 0)
        unmade = max(outstanding - ready, 0)
        not_drawn = source._prefetch_factor * source._num_workers - len(source._task_info)
        # of an IterableDataset, workers that are done leave their last requests unanswered
        if not_drawn <= 0 or iterator.stream.iterable:
            return number, unmade
        return number, unmade + not_drawn if unmade >= source._num_workers else None

    def epoch_iterations(self) -> int | None:
        """Batches per epoch of the training loader under the current settings; None if unknown."""
        choice = self._choice
        tracked, iterator = choice.loader, choice.iterator()
        template = (
            iterator.template
            if iterator is not None
            else tracked.loader()
            if tracked is not None
            else None
        )
        if tracked is None or template is None:
            return choice.facts.length if choice.facts is not None else None
        return epoch_batches(self._data, template, self._overrides.batch_size(tracked, template))

    def reader_spent(self) -> Spent:
        """Time spent fetching batches of the training loader so far."""
        tracked = self._choice.loader
        return self._meters.spent(tracked.key) if tracked is not None else Spent()


def _in_force(iterator: SwitchableIterator) -> dict[str, Any]:
    source = iterator.source
    workers = len(getattr(source, "_workers", ()))
    return {
        **iterator.settings._asdict(),
        "num_workers": workers,
        "prefetch_factor": getattr(source, "_prefetch_factor", None) if workers else None,
        "batch_size": iterator.stream.size,
    }
