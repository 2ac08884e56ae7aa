"""Garbage collections on the training thread."""

from __future__ import annotations

import gc
import sys
import threading
from time import perf_counter
from typing import Any

from autotune_trials.agent.watching.observer import Observer
from autotune_trials.agent.watching.places import Spot
from autotune_trials.evidence import Pause

SHORT_S = 50e-6  # collections below this are put together, one entry an iteration: the young generation's are frequent


class PauseObserver(Observer):
    name = "garbage collections"

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._thread = threading.get_ident()
        self._began = 0.0
        self._pauses: list[tuple[int, float, int, Spot]] = []
        self._short: dict[tuple[int, int], float] = {}

    def begin(self) -> None:
        gc.callbacks.append(self._on_collection)

    def finish(self) -> dict[str, Any]:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        places = self.watch.places
        long = [Pause(index, seconds, generation, places.place(spot)) for index, seconds, generation, spot in self._pauses]
        short = [Pause(index, seconds, generation) for (index, generation), seconds in self._short.items()]
        return {"pauses": tuple(sorted((*long, *short), key=lambda pause: pause.iteration))}

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, which prints and ignores what is raised in here."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = perf_counter()
            return
        if not self._began:
            return  # the window opened in the middle of a collection
        seconds, index, generation = perf_counter() - self._began, self.watch.index, int(info.get("generation", 0))
        if seconds < SHORT_S:
            self._short[index, generation] = self._short.get((index, generation), 0.0) + seconds
        else:
            self._pauses.append((index, seconds, generation, self.watch.places.spot(sys._getframe(1))))
