"""Where a study is recorded. The coordinator is the only writer; every call is cheap and never
raises for a network.

A *study* is one `autotune run`; a *trial* is one configuration tried; both become MLflow runs
(parent and child).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

BOTH_TAG = "autotune.both"  # of a study of two objectives: what trials have of them, metrics' names
SEARCHED_TAG = "autotune.searched"  # of a study: the knobs whose values were tried, by commas
NOTE_TAG = "mlflow.note.content"  # what MLflow shows as the description of a run


class Tracker:
    """One study's record; this one records nothing, for commands that measure without a study.

    ``key`` arguments make every call idempotent: repeating one after a resume adds nothing.
    """

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
    ) -> None:
        """A whole finished trial (child run). Params are flat ``knob.*``; metrics use the same keys
        in every trial.
        """

    def trial_artifact(self, key: str, path: Path, folder: str = "") -> None: ...

    def trial_series(self, key: str, name: str, values: Mapping[int, float]) -> None:
        """A step metric of a trial: the same name in two trials is drawn in one chart when they are
        compared.
        """

    def study_metrics(self, metrics: Mapping[str, float]) -> None: ...

    def study_artifact(self, path: Path, folder: str = "") -> None: ...

    def finish(self, status: str, params: Mapping[str, object], tags: Mapping[str, str]) -> None:
        """``status``: FINISHED, FAILED, KILLED."""
