"""A team's history in an MLflow experiment: each study keeps its own record as an artifact.

Read only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.history.records import PastRun
from autotune.history.store import StoreError, readable

RECORD = "history.json"  # of a run, in its directory and among its study's artifacts
SCHEME = "mlflow:"  # AUTOTUNE_TEAM_STORE=mlflow:EXPERIMENT, on the server of MLFLOW_TRACKING_URI
MOST_STUDIES = 200  # the newest; each takes a request of its own
UNREADABLE = 3  # studies after which the store is given up, if none could be read


class MlflowStore:
    """The studies of one experiment.

    Args:
        warn: called with one line if some of them cannot be read.
    """

    def __init__(self, experiment: str, warn: Callable[[str], None]) -> None:
        self.experiment, self._warn = experiment, warn

    def runs(self) -> list[PastRun]:
        """The newest runs first; studies without a record are left out.

        Raises:
            StoreError: MLflow does not answer, or there is no such experiment.
        """
        from autotune.tracking.client import ask, client_of, reason
        from autotune.tracking.stores import OWN_VARIABLE, resolve

        where = f"{SCHEME}{self.experiment}"
        try:
            store = resolve(os.environ.get(OWN_VARIABLE, "").strip(), where=OWN_VARIABLE)
            if store is None:
                raise StoreError(f"{where}: {OWN_VARIABLE} is not set")
            if trouble := ask(store):
                raise StoreError(f"{where}: {store.shown} does not answer: {trouble}")
            client = client_of(store)
            experiment = client.get_experiment_by_name(self.experiment)
            if experiment is None:
                raise StoreError(f"{where}: no such experiment on {store.shown}")
            studies = client.search_runs(
                [experiment.experiment_id],
                "tags.`autotune.kind` = 'study' and attributes.status = 'FINISHED'",
                max_results=MOST_STUDIES,
                order_by=["attributes.start_time DESC"],
            )
            return self._records(client, [study.info.run_id for study in studies])
        except (StoreError, InputError) as error:
            raise StoreError(str(error).splitlines()[0]) from None
        except Exception as error:  # whatever MLflow and its drivers raise
            raise StoreError(f"{where}: {reason(error)}") from error

    def _records(self, client: Any, run_ids: Sequence[str]) -> list[PastRun]:
        """Raises the error if the first few cannot be read; one whose files are gone costs no other."""
        from autotune.tracking.client import reason

        found: list[PastRun] = []
        errors: list[Exception] = []
        for run_id in run_ids:
            try:
                record = self._record(client, run_id)
                if record is not None:
                    found.append(record)
            except Exception as error:  # whatever MLflow and its drivers raise
                errors.append(error)
            if len(errors) == UNREADABLE and not found:
                break
        if errors and not found:
            raise errors[0]
        if errors:
            self._warn(
                f"{SCHEME}{self.experiment}: {len(errors)} of {len(run_ids)} studies cannot be read"
                f" and are left out of the history: {reason(errors[0])}"
            )
        return found

    def _record(self, client: Any, run_id: str) -> PastRun | None:
        """The study's record; None if it has none, being older or made with --no-history."""
        if all(file.path != RECORD for file in client.list_artifacts(run_id)):
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = client.download_artifacts(run_id, RECORD, folder)
            return readable(Path(path).read_text("utf-8"))
