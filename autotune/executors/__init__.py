"""Where sessions run: one file an executor."""

from __future__ import annotations

from pathlib import Path

from autotune.executors.base import Executor, FixedRun, LiveSession, SessionFailed
from autotune.job.spec import JobSpec

__all__ = ["Executor", "FixedRun", "LiveSession", "SessionFailed", "executor_for"]


def executor_for(spec: JobSpec, run_dir: Path) -> Executor:
    """The executor job.yaml asks for.

    Raises:
        InputError: a kind that does not exist, or a replay table that cannot be read.
    """
    from autotune.errors import InputError

    if spec.executor.kind == "local":
        from autotune.executors.local import LocalExecutor

        return LocalExecutor(spec, run_dir)
    if spec.executor.kind == "replay":
        from autotune.executors.replay import ReplayExecutor, load_table

        table = spec.executor.options.get("table")
        if not table:
            raise InputError("executor replay needs a table", expected="executor: {replay: {table: costs.json}}")
        return ReplayExecutor(load_table(spec.workdir / str(table)))
    raise InputError(
        f"there is no executor {spec.executor.kind!r}", where="executor", expected="local, replay", remedy="write `executor: local`"
    )
