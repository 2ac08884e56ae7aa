"""Finds out which loader is trained on, by what follows its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.core.events import Listener

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.dataloader.hooks import LoaderHooks
    from autotune_trials.agent.dataloader.tracked import IteratorMark


class TrainingCredit(Listener):
    """Tells the hooks which loader is trained on: one whose batches are followed by backward."""

    def __init__(self, hooks: LoaderHooks) -> None:
        self._hooks = hooks
        self._looked_at = 0  # the last batch that met an evaluation
        # mark of the iterator last credited without doubt, and the pass of its loader
        self._credited: IteratorMark | None = None
        self._pass = 0

    def evaluated(self, entry: Entry, args: tuple[Any, ...]) -> None:
        self._looked_at = self._hooks.given

    def other_evaluated(self) -> None:
        self._looked_at = self._hooks.given

    def backward_ended(self) -> None:
        hooks = self._hooks
        given, last = hooks.given, hooks.last
        if given == hooks.credited:
            return
        doubtful = self._looked_at == given
        if (
            last is not None
            and last is self._credited
            and last.loader.passes == self._pass
            and not doubtful
        ):
            hooks.credited = given  # the usual case: the same loader again
            return
        hooks.credit_backward(doubtful)
        self._credited = None if doubtful else hooks.training_mark
        self._pass = last.loader.passes if last is not None else 0
