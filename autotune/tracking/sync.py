"""Sends a run's whole record to MLflow, once.

After an offline run or a dead server, or to a second store.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import InputError
from autotune.secrets import MASK, mask_text
from autotune.tracking.client import reason, require_answer
from autotune.tracking.spool import SpoolPaths
from autotune.tracking.stores import EXPECTED, Store, preflight


@dataclass(frozen=True)
class SyncReport:
    store: Store
    experiment: str
    sent: int  # events
    missing: tuple[str, ...]  # artifacts whose file is gone


def target_of(run_dir: Path) -> tuple[str | None, str | None]:
    """(uri, experiment) that a run's record is meant for.

    Raises:
        InputError: the directory holds no record.
    """
    paths = SpoolPaths(run_dir)
    if not paths.spool.is_file():
        raise InputError(
            "no record of a run in it" if os.path.isdir(run_dir) else "there is no such run",
            where=str(run_dir),
            expected="a run's directory, or its name under autotune-runs/",
            remedy="name the directory that `autotune run` wrote to",
        )
    try:
        data = json.loads(paths.target.read_text())
        return data["uri"], data["experiment"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def sync(run_dir: Path, uri: str | None = None, experiment: str | None = None) -> SyncReport:
    """Send what the store at ``uri`` (default: the run's own) does not have yet.

    Raises:
        InputError: no record, no store to send it to, or one that does not answer or fails.
    """
    own_uri, own_experiment = target_of(run_dir)
    chosen = uri or own_uri
    if chosen is None or (uri is None and MASK in chosen):
        why = (
            "this run was recorded without MLflow"
            if chosen is None
            else "the password in its tracking URI was not kept"
        )
        raise InputError(
            why,
            where=str(run_dir),
            expected="a store to send it to",
            remedy="pass --uri, e.g. --uri auto",
        )
    where = "--uri" if uri else str(run_dir)
    store = preflight(chosen, run_dir, where)
    if store is None:
        raise InputError("no store to send to", where="--uri", expected=EXPECTED)
    require_answer(store, where)
    from autotune.tracking.mlflow import Sender

    sender = Sender(run_dir, store, experiment or own_experiment or run_dir.resolve().name)
    try:
        sent = sender.send(wait=True)
    except Exception as error:  # whatever MLflow and its drivers raise
        raise InputError(
            f"MLflow at {store.shown} fails: {mask_text(reason(error), os.environ)}",
            where=str(run_dir),
            remedy="run `autotune sync` again when it answers; nothing is sent twice",
        ) from error
    return SyncReport(store, sender.experiment, sent, tuple(sender.missing))
