"""Keeps the job's experiment trackers local during trials: MLflow stays in the trial's directory
and W&B offline, even if the job's code says otherwise. launch_environment.py sets the environment
variables for this; the functions here handle addresses given in the code.
"""

from __future__ import annotations

import functools
import os
from typing import Any


def keep_mlflow_here(module: Any) -> None:
    """``module``: mlflow.tracking._tracking_service.utils. The session's address replaces any
    address given in the code.

    ``env:`` in job.yaml overrides the session's address, so that users can send the trials to their
    own store.
    """
    here = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not here:
        return
    original_set, original_resolve = module.set_tracking_uri, module._resolve_tracking_uri

    @functools.wraps(original_set)
    def set_tracking_uri(uri: Any, *args: Any, **kwargs: Any) -> Any:
        return original_set(here, *args, **kwargs)

    @functools.wraps(original_resolve)
    def _resolve_tracking_uri(tracking_uri: Any = None) -> Any:
        return original_resolve(here if tracking_uri else None)

    module.set_tracking_uri, module._resolve_tracking_uri = set_tracking_uri, _resolve_tracking_uri


def keep_wandb_offline(module: Any) -> None:
    """``module``: wandb. ``wandb.init(mode="online", dir=…)`` stays offline and in the session's
    directory.
    """
    original, folder = module.init, os.environ.get("WANDB_DIR")
    allowed = os.environ.get("WANDB_MODE", "offline")  # env: of job.yaml wins

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") not in ("offline", "disabled"):
            kwargs["mode"] = allowed
        if folder:
            kwargs["dir"] = folder
        return original(*args, **kwargs)

    module.init = init
