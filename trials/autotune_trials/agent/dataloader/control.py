"""Sets the options of the training loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune_trials.agent.dataloader.hooks import LoaderHooks


class TrainingLoaderControl:
    """Implements LoaderControl: settings for the training loader, in force from its next batch."""

    def __init__(self, hooks: LoaderHooks) -> None:
        self._hooks = hooks

    def set(self, **settings: Any) -> None:
        """Override constructor arguments; None restores the job's own value. ``own_batch_size``:
        apply ``batch_size`` only to loaders that the job builds with that size.

        Raises:
            ValueError: not a value of that setting, or a batch size where the job's own sampler
                makes batches.
        """
        hooks = self._hooks
        known = hooks.facts
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
        before = dict(hooks.overrides)
        for name, value in settings.items():
            if value is None:
                hooks.overrides.pop(name, None)
            else:
                hooks.overrides[name] = value
        if hooks.overrides != before:
            hooks.changed()

    def own_batch_size(self) -> int | None:
        """The batch size the job itself built the DataLoader with; None if not known yet."""
        if self._hooks.facts is not None:
            return self._hooks.facts.batch_size
        tracked = self._hooks.holder()  # found by its key, not iterated yet
        return tracked.batch_size if tracked is not None else None
