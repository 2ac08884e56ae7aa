"""MLflow's tables, made once a process of tests and copied from then on: MLflow takes seconds and
hundreds of writes for them.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


@functools.cache
def _made() -> Path:
    from mlflow import MlflowClient

    folder = Path(tempfile.mkdtemp(prefix="at-store-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"


def empty_store(database: Path) -> Path:
    """A sqlite store that holds nothing, at ``database``."""
    database.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(_made(), database))
