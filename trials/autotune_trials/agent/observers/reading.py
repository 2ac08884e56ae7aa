"""The time DataLoader workers spent fetching batches, including decoding images, in the window."""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.dataloader.reader_meter import Spent
from autotune_trials.agent.observers.observer import Observer


class ReadingObserver(Observer):
    name = "reading"

    def begin(self) -> None:
        self._before = self._spent()

    def finish(self) -> dict[str, Any]:
        spent = self._spent().since(self._before)
        return {"fetching_s": spent.wall_s, "decoding_s": spent.decoding_s}

    def _spent(self) -> Spent:
        source = self.agent.loaders.training_source
        settings = source.settings_in_force()
        return source.reader_spent() if settings is not None and settings.num_workers else Spent()
