"""Garbage collections on the training thread."""

from __future__ import annotations

import gc
import sys
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.observers.observer import Observer
from autotune_trials.measure.clock import NAMES
from autotune_trials.protocol.evidence import Pause

if TYPE_CHECKING:
    from autotune_trials.agent.observers.watch import Watch


class PauseObserver(Observer):
    name = "garbage collections"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._thread = threading.get_ident()
        self._began = 0.0
        # [spot, count, seconds, longest in seconds]
        self._pauses: dict[tuple[int, int, int, int], list[Any]] = {}

    def begin(self) -> None:
        gc.callbacks.append(self._on_collection)

    def finish(self) -> dict[str, Any]:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        place = self.watch.places.place
        return {
            "pauses": tuple(
                Pause(index, seconds, generation, place(spot), count, longest)
                for (index, generation, _, _), (
                    spot,
                    count,
                    seconds,
                    longest,
                ) in self._pauses.items()
            )
        }

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, which prints and ignores exceptions raised in here."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = perf_counter()
            return
        if not self._began:
            return  # the window opened in the middle of a collection
        if NAMES[self.agent.timer.clock.phase] == "away":
            return  # outside the watched iterations
        seconds = perf_counter() - self._began
        index = self.watch.index
        generation = int(info.get("generation", 0))
        spot = self.watch.places.spot(sys._getframe(1))
        known = self._pauses.setdefault(
            (index, generation, id(spot[0]), spot[1]), [spot, 0, 0.0, 0.0]
        )
        known[1:] = known[1] + 1, known[2] + seconds, max(known[3], seconds)
