"""Where sessions run: one file per executor, and a folder for the cluster's."""

from __future__ import annotations

import importlib
from pathlib import Path

from autotune.executors.base import Executor, Tell
from autotune.job.spec import EXECUTORS, JobSpec
from autotune_spaces.facts import Machine


def executor_for(
    spec: JobSpec,
    run_dir: Path,
    *,
    like: Machine | None = None,
    say: Tell = print,
    warn: Tell = print,
) -> Executor:
    """The executor that job.yaml asks for.

    Args:
        like: the machine that earlier sessions of this run used; of a cluster, only machines like
            it are used.
        say, warn: called with what a person should know about where sessions run.

    Raises:
        InputError: a cluster that cannot be reached.
        KeyError: there is no such executor.
    """
    module = importlib.import_module(EXECUTORS[spec.executor.kind])
    executor: Executor = module.open_executor(spec, run_dir, like=like, say=say, warn=warn)
    return executor
