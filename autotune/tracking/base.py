"""Where a study is recorded.

The tuner is the only writer; every call is cheap and never raises because of the network.

A *study* is one `autotune run`; a *trial* is one configuration tried; both become MLflow runs
(parent and child).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

BOTH_TAG = "autotune.both"  # on a study with two objectives: the metrics its trials have for them
SEARCHED_TAG = "autotune.searched"  # on a study: the knobs whose values were tried, comma-separated
NOTE_TAG = "mlflow.note.content"  # what MLflow shows as a run's description


class Tracker:
    """The record of one study; this class records nothing, for commands without a study.

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
        """Record a whole finished trial (child run).

        Params are flat ``knob.*``; metrics use the same keys in every trial.
        """

    def trial_artifact(self, key: str, path: Path, folder: str = "") -> None: ...

    def trial_series(self, key: str, name: str, values: Mapping[int, float]) -> None:
        """Record a step metric of a trial.

        MLflow draws metrics of the same name in one chart when it compares trials.
        """

    def study_metrics(self, metrics: Mapping[str, float]) -> None: ...

    def study_artifact(self, path: Path, folder: str = "") -> None: ...

    def finish(self, status: str, params: Mapping[str, object], tags: Mapping[str, str]) -> None:
        """``status``: FINISHED, FAILED, KILLED."""
