"""Experiment trackers of the job's own, during trials: MLflow stays in the trial's directory and
W&B offline, also where the job's code says otherwise. The variables that say the same are set by
launch_environment.py; these are for addresses given in the code.
"""

from __future__ import annotations

import functools
import os
from typing import Any


def keep_mlflow_here(module: Any) -> None:
    """``module``: mlflow.tracking._tracking_service.utils. Whatever address the code gives, it is
    the session's.

    ``env:`` of job.yaml wins over the session's own address, so a user who wants the trials in a
    store of theirs can say so.
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
