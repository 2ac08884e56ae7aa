"""MLflow set up to fail fast, a client for a store, and why a store does not answer."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

from autotune.errors import InputError, request_failure
from autotune.secrets import mask_url
from autotune.tracking.stores import Store

REQUEST_TIMEOUT_S, UPLOAD_TIMEOUT_S = 8, 300
DATABASE_TIMEOUT_S = 15.0


@functools.cache
def mlflow_module() -> Any:
    """MLflow, set up to fail fast.

    The defaults are changed inside MLflow, not in the environment: the job's processes inherit
    ours, and a job that uses MLflow itself must find its own settings. Single requests are not
    retried: a repeated "create run" whose first answer was lost would create two runs. What the
    user has set in the environment still wins.
    """
    before = os.environ.get("MLFLOW_DISABLE_TELEMETRY")
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read while mlflow is imported
    try:
        import mlflow
        import mlflow.environment_variables as settings
    finally:
        if before is None:
            del os.environ["MLFLOW_DISABLE_TELEMETRY"]
        else:
            os.environ["MLFLOW_DISABLE_TELEMETRY"] = before
    for name, value in (
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", 0),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", REQUEST_TIMEOUT_S),
        ("MLFLOW_DISABLE_TELEMETRY", True),
        # it would print a line per trial into our own output
        ("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", True),
    ):
        if hasattr(settings, name):
            getattr(settings, name).default = value
    import logging

    for name in ("mlflow", "alembic"):
        # "Creating initial MLflow database tables..."
        logging.getLogger(name).setLevel(logging.ERROR)
    return mlflow


@contextlib.contextmanager
def uploading() -> Iterator[None]:
    """A server may take long to answer a request that brings a large file."""
    import mlflow.environment_variables as settings

    setting = settings.MLFLOW_HTTP_REQUEST_TIMEOUT
    before, setting.default = setting.default, UPLOAD_TIMEOUT_S
    try:
        yield
    finally:
        setting.default = before


def client_of(store: Store) -> Any:
    if store.database is not None:
        store.database.parent.mkdir(parents=True, exist_ok=True)
    return mlflow_module().MlflowClient(tracking_uri=store.uri)


def reason(error: BaseException) -> str:
    """Why MLflow failed, in one line."""
    return mask_url(request_failure(error))[:300]


def ask(store: Store) -> str:
    """Ask the store one small question; "" if it answers, otherwise why it does not."""
    result: list[str] = []

    def question() -> None:
        try:
            client_of(store).search_experiments(max_results=1)
            result.append("")
        except Exception as error:  # whatever MLflow and its drivers raise is the answer
            result.append(reason(error))

    # MLflow retries a dead database for minutes, whatever its settings: leave it behind in a
    # thread.
    thread = threading.Thread(target=question, daemon=True, name="autotune-preflight")
    mlflow_module()
    thread.start()
    thread.join(DATABASE_TIMEOUT_S)
    return result[0] if result else f"no answer in {DATABASE_TIMEOUT_S:.0f} s"


def require_answer(store: Store, where: str) -> None:
    """Check that ``store`` answers within some seconds.

    Raises:
        InputError: it does not.
    """
    if store.database is not None and not store.database.exists():
        return
    trouble = ask(store)
    if trouble:
        remedy = (
            "start it, and run `autotune sync` again: the record is kept, and nothing is sent twice"
        )
        raise InputError(
            f"{store.shown} does not answer: {trouble}",
            where=where,
            expected="an MLflow store",
            remedy=remedy,
        )
