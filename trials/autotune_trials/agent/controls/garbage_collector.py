"""Python's garbage collector: as the interpreter came, as the job set it, as a knob wants it.

A module of its own and not part of :mod:`.live_job`, because what the interpreter came with has to
be read before the job's first line.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.core.loop_state import Ending

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

# thresholds and frozen objects, before any line of the job
_came_with: tuple[tuple[int, int, int], int] | None = None


def note() -> None:
    """Remember how the collector is set while nothing of the job has run."""
    global _came_with
    _came_with = gc.get_threshold(), gc.get_freeze_count()


def own_setting() -> str:
    """What the job did to the collector, as a call; "" if nothing, or nobody noted how it was
    before.
    """
    if not gc.isenabled():
        return "gc.disable()"
    if _came_with is None:
        return ""
    thresholds, frozen = _came_with
    if gc.get_freeze_count() > frozen:
        return "gc.freeze()"
    return "" if gc.get_threshold() == thresholds else f"gc.set_threshold{gc.get_threshold()}"


class Collector:
    """The collector's settings, changed and given back."""

    def __init__(self) -> None:
        self._own_thresholds: tuple[int, int, int] | None = None  # while ours are set
        self._frozen = False

    @property
    def changed(self) -> bool:
        return self._frozen or self._own_thresholds is not None

    def set(self, freeze: bool, threshold: int | None) -> None:
        """Idempotent; ``set(False, None)`` is the job's own setting."""
        self._set_threshold(threshold)
        if freeze and not self._frozen:
            self._frozen = True
            gc.collect()
            gc.freeze()
        elif self._frozen and not freeze:
            self._frozen = False
            gc.unfreeze()
            # when the next full collection is due follows from how many objects the last one saw
            gc.collect()

    def _set_threshold(self, threshold: int | None) -> None:
        if threshold is not None:
            self._own_thresholds = self._own_thresholds or gc.get_threshold()
            gc.set_threshold(threshold, *self._own_thresholds[1:])
        elif self._own_thresholds is not None:
            gc.set_threshold(*self._own_thresholds)
            self._own_thresholds = None


class GcControl(Control):
    """Values: "freeze" (what there is now is left out of later collections), a threshold (collect
    after so many new objects), None.
    """

    name = "gc"

    def __init__(self, live: LiveJobControl) -> None:
        super().__init__(live)
        self.collector = Collector()

    def set(self, value: Any) -> None:
        """Frozen is what there is when training begins, model and data among it: not what little
        there is when torch is imported.
        """
        begun = self.live.has_stepped or self.live.state.ends_with is not Ending.STEP
        self.collector.set(value == "freeze" and begun, value if isinstance(value, int) else None)
