"""MLflow's tables, created once per test process and then copied: creating them takes MLflow
seconds and hundreds of writes.
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
    """An empty sqlite store at ``database``."""
    database.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(_made(), database))
