"""A real session of a program, and a tuned.yaml with chosen knobs and the sites that the agent
found.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from autotune.executors.local import LocalExecutor
from autotune.export.tuned import build_tuned, write_tuned
from autotune.job.spec import JobSpec
from autotune.results import Anatomy, Interval, LossVerdict, Observation, Result
from autotune_spaces.base import SearchSpace
from autotune_spaces.facts import JobFacts
from autotune_spaces.knobs import create


def record(folder: Path, *words: str, env: dict[str, str] | None = None) -> JobFacts:
    """What the agent reports of ``python words`` run in ``folder``."""
    executor = LocalExecutor(_spec(folder, words, env or {}, ()), folder.parent / "run")
    try:
        with executor.open_live() as session:
            return session.job
    finally:
        executor.close()


def make_tuned(
    folder: Path,
    job: JobFacts,
    words: tuple[str, ...],
    knobs: dict[str, Any],
    path: Path,
    **batch_size: Any,
) -> None:
    """Write the tuned.yaml of a run that ended with ``knobs``; ``batch_size``: options of that
    knob.
    """
    anatomy = Anatomy({}, 0.1, 0.1, 0.1, 0.1, 320.0, 0.01, 0.1, 0.1, 60, 10)
    own = {"batch_size": job.loader.batch_size if job.loader else None}
    observation = Observation(_machine(), job, anatomy, 0.01, None, "loader", "", {}, own, {})
    result = Result(
        "patched",
        "tuned",
        "faster",
        Interval(1.5, 1.4, 1.6),
        LossVerdict("unchanged", "", 4, 240),
        knobs,
        own,
        observation,
        None,
        (),
        (),
        (),
        60.0,
        {},
    )
    spec = _spec(
        folder,
        words,
        {},
        tuple(create(name, batch_size if name == "batch_size" else {}) for name in knobs),
    )
    write_tuned(build_tuned(result, spec), path)


def _spec(
    folder: Path, words: tuple[str, ...], env: dict[str, str], knobs: tuple[Any, ...]
) -> JobSpec:
    return JobSpec(
        "patched",
        (sys.executable, *words),
        folder,
        env,
        SearchSpace("test", knobs),
        startup_timeout_s=60.0,
    )


def _machine() -> Any:
    from autotune.export.fingerprint import current
    from autotune.export.tuned import TunedConfig

    return current(TunedConfig("here", (sys.executable,), Path.cwd()), {})
