"""Sets the options of the training loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.overrides import LoaderOverrides
    from autotune_trials.agent.dataloader.training_choice import TrainingLoaderChoice


class TrainingLoaderControl:
    """Implements LoaderControl: settings for the training loader, in force from its next batch."""

    def __init__(self, choice: TrainingLoaderChoice, overrides: LoaderOverrides) -> None:
        self._choice, self._overrides = choice, overrides

    def set(self, **settings: Any) -> None:
        """Override constructor arguments; None restores the job's own value. ``own_batch_size``:
        apply ``batch_size`` only to loaders that the job builds with that size.

        Raises:
            ValueError: not a value of that setting, or a batch size where the job's own sampler
                makes batches.
        """
        known = self._choice.facts
        if (
            settings.get("batch_size") is not None
            and known is not None
            and known.batch_size is None
        ):
            raise ValueError(
                "this DataLoader uses the job's own batch sampler (or no batching), so batch_size"
                " cannot be changed"
            )
        for name, value in settings.items():
            least = {"batch_size": 1, "prefetch_factor": 1}.get(name, 0)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(
                    f"{name} is {value!r}; expected a whole number ≥ {least}, or True or False"
                )
        self._overrides.update(settings)

    def fits_batch_size(self) -> bool:
        """Whether the batch size override is for the loader that is trained on now."""
        tracked = self._choice.loader
        return tracked is None or self._overrides.fits_batch_size(tracked)

    def own_batch_size(self) -> int | None:
        """The batch size the job itself built the DataLoader with; None if not known yet."""
        if self._choice.facts is not None:
            return self._choice.facts.batch_size
        tracked = self._choice.presumed()  # found by its key, not iterated yet
        return tracked.batch_size if tracked is not None else None
