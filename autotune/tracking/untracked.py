"""For commands that measure without making a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.tracking.base import Tracker


class Untracked(Tracker):
    """Records nothing anywhere."""

    def start_study(
        self, key: str, name: str, params: Mapping[str, object], tags: Mapping[str, str]
    ) -> None: ...

    def trial(
        self,
        key: str,
        name: str,
        params: Mapping[str, object],
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
    ) -> None: ...

    def trial_artifact(self, key: str, path: Path, folder: str = "") -> None: ...

    def trial_series(self, key: str, name: str, values: Mapping[int, float]) -> None: ...

    def study_metrics(self, metrics: Mapping[str, float]) -> None: ...

    def study_artifact(self, path: Path, folder: str = "") -> None: ...

    def finish(
        self, status: str, params: Mapping[str, object], tags: Mapping[str, str]
    ) -> None: ...
