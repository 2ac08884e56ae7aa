"""Where sessions run: one file an executor, and a folder for the cluster's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.executors.base import Executor, FixedRun, LiveSession, SessionFailed
from autotune.job.spec import JobSpec
from autotune_spaces.facts import Machine

__all__ = ["Executor", "FixedRun", "LiveSession", "SessionFailed", "executor_for"]


Tell = Callable[[str], None]


def executor_for(spec: JobSpec, run_dir: Path, *, like: Machine | None = None, say: Tell = print, warn: Tell = print) -> Executor:
    """The executor job.yaml asks for.

    Args:
        like: the machine that earlier sessions of this run were on; of a cluster, only such ones are used.
        say, warn: told what a person should know of where sessions run.

    Raises:
        InputError: a kind that does not exist, a replay table that cannot be read, a cluster that cannot be reached.
    """
    from autotune.errors import InputError

    if spec.executor.kind == "local":
        from autotune.executors.local import LocalExecutor

        return LocalExecutor(spec, run_dir, say)
    if spec.executor.kind == "ray":
        from autotune.executors.cluster.executor import RayExecutor

        return RayExecutor(spec, run_dir, like=like, say=say, warn=warn)
    if spec.executor.kind == "replay":
        from autotune.executors.replay import ReplayExecutor, load_table

        table = spec.executor.options.get("table")
        if not table:
            raise InputError("executor replay needs a table", expected="executor: {replay: {table: costs.json}}")
        return ReplayExecutor(load_table(spec.workdir / str(table)))
    raise InputError(
        f"there is no executor {spec.executor.kind!r}", where="executor", expected="local, ray, replay", remedy="write `executor: local`"
    )
