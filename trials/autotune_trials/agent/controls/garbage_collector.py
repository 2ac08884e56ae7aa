"""Switches Python's garbage collector, and tells what the interpreter and the job set it to.

Kept apart from :mod:`.live_job` because the interpreter's own settings must be read before the
job's first line runs.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.core.loop_state import Ending

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

# (thresholds, number of frozen objects) before the job's first line
_came_with: tuple[tuple[int, int, int], int] | None = None


def note() -> None:
    """Record the collector's settings before any of the job's code has run."""
    global _came_with
    _came_with = gc.get_threshold(), gc.get_freeze_count()


def own_setting() -> str:
    """The job's own change to the collector, as a call; "" if there is none or :func:`note` has not
    run.
    """
    if not gc.isenabled():
        return "gc.disable()"
    if _came_with is None:
        return ""
    thresholds, frozen = _came_with
    if gc.get_freeze_count() > frozen:
        return "gc.freeze()"
    return "" if gc.get_threshold() == thresholds else f"gc.set_threshold{gc.get_threshold()}"


class GcControl(Control):
    """Values: "freeze" (exempts the objects that exist now from later collections), a threshold
    (collect after that many new objects), None.
    """

    name = "gc"

    def __init__(self, live: LiveJobControl) -> None:
        super().__init__(live)
        self._own_thresholds: tuple[int, int, int] | None = None  # the job's, while ours are set
        self._frozen = False

    @property
    def changed(self) -> bool:
        return self._frozen or self._own_thresholds is not None

    def set(self, value: Any) -> None:
        """Freeze only once training has begun: model and data exist by then, unlike when torch is
        imported.
        """
        self._set_threshold(value if isinstance(value, int) else None)
        begun = self.live.has_stepped or self.live.state.ends_with is not Ending.STEP
        freeze = value == "freeze" and begun
        if freeze and not self._frozen:
            self._frozen = True
            gc.collect()
            gc.freeze()
        elif self._frozen and not freeze:
            self._frozen = False
            gc.unfreeze()
            # the number of objects the last full collection saw decides when the next one is due
            gc.collect()

    def _set_threshold(self, threshold: int | None) -> None:
        if threshold is not None:
            self._own_thresholds = self._own_thresholds or gc.get_threshold()
            gc.set_threshold(threshold, *self._own_thresholds[1:])
        elif self._own_thresholds is not None:
            gc.set_threshold(*self._own_thresholds)
            self._own_thresholds = None
